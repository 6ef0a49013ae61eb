//! EvaluatePlacement: what the allocator would answer, by the engine's last view.

use stelia_allocator::evaluate::{MAX_REQUESTS, Place, Request, Told, evaluate};
use stelia_api::{Error, ErrorKind};
use zbus::{OwnedVariant, Variant};

use super::manager::Options;
use super::options;
use super::readings::Readings;
use crate::engine::Handle;

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
    let answers = readings.read(move |_| Ok(evaluate(&engine.view().ground()?, &requests)));
    let answers = answers.await?;
    answers.iter().map(|answer| dict(Told::from(answer))).collect()
}

fn read(requests: &[Options]) -> Result<Vec<Request>, Error> {
    if requests.len() > MAX_REQUESTS {
        let text = format!("{} requests are more than {MAX_REQUESTS}", requests.len());
        return Err(ErrorKind::InvalidArgument.because(text));
    }
    let numbered = |(at, request): (usize, &Options)| {
        let named = |cause: Error| cause.kind.because(format!("request {at}: {cause}"));
        options::request(request).map_err(named)
    };
    requests.iter().enumerate().map(numbered).collect()
}

fn dict(told: Told) -> Result<Options, Error> {
    let Told {
        fit,
        error,
        reason,
        place,
    } = told;
    let mut dict = Options::new();
    let mut put = |name: &str, value: Variant<'static>| -> Result<(), Error> {
        let value =
            OwnedVariant::try_from(value).map_err(|cause| ErrorKind::Failed.because(format!("answer: {cause}")))?;
        dict.insert(name.to_owned(), value);
        Ok(())
    };
    put("fit", fit.into())?;
    for (name, text) in [("error", error), ("reason", reason)] {
        if let Some(text) = text {
            put(name, text.into())?;
        }
    }
    if let Some(place) = place {
        let Place {
            qos,
            cpus,
            runs_on,
            numa_nodes,
            aligned,
            exclusivity,
            score,
            score_numa,
            score_cpus,
        } = place;
        for (name, text) in [
            ("qos", qos),
            ("cpus", cpus),
            ("runs-on", runs_on),
            ("exclusivity", exclusivity),
        ] {
            put(name, text.into())?;
        }
        for (name, number) in [("score", score), ("score-numa", score_numa), ("score-cpus", score_cpus)] {
            put(name, number.into())?;
        }
        put("numa-nodes", numa_nodes.into())?;
        put("aligned", aligned.into())?;
    }
    Ok(dict)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;
    use steliactl::evaluate::to_dbus;
    use steliactl::view::json_of;

    use super::*;
    use crate::decide::evaluate_tests::{any_host, any_request, ground};

    fn own(request: &Request) -> Options {
        let own = |(name, value): (&str, Variant<'static>)| (name.to_owned(), value.try_into().unwrap());
        to_dbus(request).into_iter().map(own).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn what_is_asked_and_told_comes_over_the_bus_as_it_is((host, node) in any_host(), request in any_request()) {
            prop_assert_eq!(&read(&[own(&request)]).unwrap(), std::slice::from_ref(&request));
            for answer in evaluate(&ground(&host, &node), &[request]) {
                let told = Told::from(&answer);
                let sent = json_of(&dict(told.clone()).unwrap());
                prop_assert_eq!(serde_json::from_value::<Told>(Value::Object(sent.clone())).unwrap(), told.clone());
                prop_assert_eq!(serde_json::to_value(told).unwrap(), Value::Object(sent));
            }
        }
    }

    #[test]
    fn the_request_at_fault_is_named_and_there_is_a_limit() {
        let mut wrong = own(&Request::default());
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
