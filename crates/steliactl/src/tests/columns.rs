//! The columns of tables, as steliactl(1) explains them.

use crate::shared::kernel::locality::CERTIFICATE;
use crate::shared::output::manual::explained;
use crate::tests::fixtures::headings;
use crate::view::{list, show, top};

#[test]
fn every_column_is_explained() {
    let columns = |part| explained("COLUMNS", Some(part));
    assert_eq!(columns("list"), headings(&list::COLUMNS));
    assert_eq!(columns("show: threads"), headings(&show::COLUMNS));
    assert_eq!(columns("show: locality"), headings(&CERTIFICATE));
    assert_eq!(columns("top"), top::headings());
}
