//! The columns of tables, as steliactl(1) explains them.

use stelia_table::Column;

use crate::shared::kernel::locality::CERTIFICATE;
use crate::shared::output::manual::explained;
use crate::view::{list, show, top};

fn headings<T>(columns: &[Column<T>]) -> Vec<&'static str> {
    columns.iter().map(Column::heading).collect()
}

#[test]
fn every_column_is_explained() {
    let columns = |part| explained("COLUMNS", Some(part));
    assert_eq!(columns("list"), headings(&list::COLUMNS));
    assert_eq!(columns("show: threads"), headings(&show::COLUMNS));
    assert_eq!(columns("show: locality"), headings(&CERTIFICATE));
    assert_eq!(columns("top"), top::headings());
}
