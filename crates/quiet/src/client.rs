//! stub
use crate::order::Order;
use stelia_api::quiet::Report;
#[derive(Debug)]
pub struct Client;
impl Client {
    pub fn new(_: &str) -> Self {
        Self
    }
    pub fn carry_out(&self, _: &Order) -> Result<Report, std::io::Error> {
        Ok(Report::default())
    }
}
