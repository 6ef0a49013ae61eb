//! EvaluatePlacement: what the allocator would answer, by the engine's last view.

use stelia_api::dict::to_dict;
use stelia_api::{Error, ErrorKind};
use stelia_koordinator::allocator::evaluate::{EvaluateAnswer, EvaluateRequest, MAX_REQUESTS, evaluate};

use super::cached_readings::Readings;
use super::manager::Options;
use super::options;
use crate::engine::{Handle, allocator_node};

/// Answer every request.
pub(super) async fn answers(
    engine: &Handle,
    readings: &Readings,
    requests: &[Options],
    given: &Options,
) -> Result<Vec<Options>, Error> {
    options::known(given, &[])?;
    let requests = read(requests)?;
    let engine = engine.clone();
    let answers = readings.read(move |_| Ok(evaluate(&allocator_node(&engine.view())?, &requests)));
    let answers = answers.await?.into_iter().map(EvaluateAnswer::from);
    answers.map(|answer| to_dict(&answer)).collect()
}

fn read(requests: &[Options]) -> Result<Vec<EvaluateRequest>, Error> {
    if requests.len() > MAX_REQUESTS {
        let text = format!("{} requests are more than {MAX_REQUESTS}", requests.len());
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let numbered = |(at, request): (usize, &Options)| {
        let named = |cause: Error| cause.kind.because(format!("request {at}: {cause}"));
        options::evaluation(request).map_err(named)
    };
    requests.iter().enumerate().map(numbered).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;
    use stelia_decide::testing::{allocator_node, any_host, any_request};
    use steliactl::output::json_of;
    use zbus::Variant;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn what_is_asked_and_told_comes_over_the_bus_as_it_is((host, node) in any_host(), request in any_request()) {
            prop_assert_eq!(&read(&[to_dict(&request).unwrap()]).unwrap(), std::slice::from_ref(&request));
            for answer in evaluate(&allocator_node(&host, &node), &[request]) {
                let told = EvaluateAnswer::from(answer);
                let sent = json_of(&to_dict(&told).unwrap());
                prop_assert_eq!(serde_json::from_value::<EvaluateAnswer>(Value::Object(sent.clone())).unwrap(), told.clone());
                prop_assert_eq!(serde_json::to_value(told).unwrap(), Value::Object(sent));
            }
        }
    }

    #[test]
    fn the_request_at_fault_is_named_and_there_is_a_limit() {
        let mut wrong = to_dict(&EvaluateRequest::default()).unwrap();
        wrong.insert("memory".to_owned(), Variant::from(1u32).try_into().unwrap());
        let refused = read(&[Options::new(), wrong]).unwrap_err();
        assert_eq!(
            (refused.kind, refused.text.as_str()),
            (ErrorKind::InvalidArgument, "request 1: option \"memory\" is not known")
        );
        let many: Vec<Options> = (0..=MAX_REQUESTS).map(|_| Options::new()).collect();
        let refused = read(&many).unwrap_err();
        assert!(refused.kind == ErrorKind::InvalidArgument && refused.text.contains("1025 requests"));
    }
}
