//! The columns of tables, as steliactl-fields(5) explains them.

use crate::shared::kernel::locality::CERTIFICATE;
use crate::shared::output::manual::explained;
use crate::tests::fixtures::headings;
use crate::view::show::THREADS;

#[test]
fn every_column_is_explained() {
    let columns = |part| explained("COLUMNS", Some(part));
    assert_eq!(columns("show: locality"), headings(&CERTIFICATE));
    assert_eq!(columns("show: threads"), headings(&THREADS));
}
