//! A node that is only described answers as the daemon on it does.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stelia_decide::Derived;
use stelia_decide::testing::{any_host, any_request};
use stelia_koordinator::allocator::evaluate::evaluate;
use stelia_koordinator::report::{ApiVersion, described, report};
use stelia_model as model;
use stelia_settings::Policies;

use super::node_facts;
use super::view::{allocator_node, show_node};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_described_node_answers_as_the_node_does(
        (host, allocator) in any_host(), requests in proptest::collection::vec(any_request(), 1..6), second in any::<bool>(),
    ) {
        let policies = Policies { allocator, ..Policies::default() };
        let mut view = model::Node::default();
        show_node(&mut view, &host, &Derived::of(&host, &policies), &policies);
        let facts = node_facts(&view, None, BTreeMap::new(), "n".to_owned()).unwrap();
        let version = if second { ApiVersion::V1Alpha2 } else { ApiVersion::V1Alpha1 };
        let text = serde_json::to_string(&report(&facts, version)).unwrap();
        let described = described::read(&text).unwrap();
        let answers = evaluate(&described.allocator_node().unwrap(), &requests);
        prop_assert_eq!(answers, evaluate(&allocator_node(&view).unwrap(), &requests));
    }
}
