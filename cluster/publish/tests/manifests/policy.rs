//! A ValidatingAdmissionPolicy as the API server applies it (KEP-3488): the rules that match, the conditions, variables, then every validation.
//! An expression that fails denies, because the policies say `failurePolicy: Fail`. A variable that fails is an error where it is used.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::{Context, Env, Value as Cel, to_value};
use serde_json::Value;

use crate::kustomization::built;
use crate::{cluster, kind, list, strings};

/// The policies of the publisher, and those of the publisher and of placement.
fn all() -> &'static [Vec<Value>; 2] {
    static POLICIES: OnceLock<[Vec<Value>; 2]> = OnceLock::new();
    POLICIES.get_or_init(|| {
        let of = |folder: &str| {
            let mut objects = built(&cluster(folder));
            objects.retain(|object| kind(object) == "ValidatingAdmissionPolicy");
            objects
        };
        let publishers = of("base");
        let both = [publishers.clone(), of("placement/base")].concat();
        [publishers, both]
    })
}

pub fn policies() -> &'static [Value] {
    &all()[0]
}

pub fn all_policies() -> &'static [Value] {
    &all()[1]
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}: {value}"))
}

fn matches(rule: &Value, request: &Value) -> bool {
    let has = |key: &str, wanted: &str| strings(&rule[key]).iter().any(|one| *one == "*" || *one == wanted);
    let resource = &request["resource"];
    let plain = text(resource, "resource").to_owned();
    let named = match request["subResource"].as_str() {
        Some(sub) => format!("{plain}/{sub}"),
        None => plain,
    };
    has("apiGroups", text(resource, "group"))
        && has("apiVersions", text(resource, "version"))
        && has("resources", &named)
        && has("operations", text(request, "operation"))
}

/// What the expressions of one request see.
struct Scope {
    context: Context<'static, 'static>,
    variables: HashMap<String, Cel>,
}

impl Scope {
    fn new(request: &Value) -> Self {
        let mut scope = Self {
            context: Context::with_env(Arc::new(Env::stdlib())),
            variables: HashMap::new(),
        };
        scope.add("request", request);
        for name in ["object", "oldObject"] {
            scope.add(name, &request[name]);
        }
        scope
    }

    fn add(&mut self, name: &str, value: &Value) {
        let value = to_value(value).expect("a value");
        self.context.add_variable_from_value(name, value);
    }

    fn evaluate(&self, expression: &str) -> Result<Cel, String> {
        let program = Env::stdlib().compile(expression);
        let program = program.unwrap_or_else(|e| panic!("{expression}: {e}"));
        program.execute(&self.context).map_err(|e| e.to_string())
    }

    fn set_variable(&mut self, name: &str, expression: &str) {
        if let Ok(value) = self.evaluate(expression) {
            self.variables.insert(name.to_owned(), value);
        }
        let all = Cel::Map(self.variables.clone().into());
        self.context.add_variable_from_value("variables", all);
    }
}

/// What the policies say against the request: policy and message. Empty: it is admitted.
pub fn denials(review: &Value) -> Vec<(String, String)> {
    denials_by(all_policies(), review)
}

/// What these policies say against the request.
pub fn denials_by(policies: &[Value], review: &Value) -> Vec<(String, String)> {
    let request = &review["request"];
    let mut denials = Vec::new();
    for policy in policies {
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let mut rules = list(&spec["matchConstraints"]["resourceRules"]).iter();
        if !rules.any(|rule| matches(rule, request)) {
            continue;
        }
        let mut scope = Scope::new(request);
        let conditions = list(&spec["matchConditions"]).iter();
        let said: Vec<Result<Cel, String>> = conditions.map(|one| scope.evaluate(text(one, "expression"))).collect();
        // As the API server: one that is false leaves the policy out, whatever the others fail with.
        if said.contains(&Ok(Cel::Bool(false))) {
            continue;
        }
        assert!(said.iter().all(|one| *one == Ok(Cel::Bool(true))), "{said:?}");
        for variable in list(&spec["variables"]) {
            scope.set_variable(text(variable, "name"), text(variable, "expression"));
        }
        let name = policy["metadata"]["name"].as_str().expect("a name");
        for validation in list(&spec["validations"]) {
            match scope.evaluate(text(validation, "expression")) {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) | Err(_) => {
                    denials.push((name.to_owned(), text(validation, "message").to_owned()))
                }
                Ok(other) => panic!("{name}: {other:?} is no answer"),
            }
        }
    }
    denials
}

/// Every expression of the policies.
pub fn expressions(policies: &[Value]) -> Vec<&str> {
    fn of<'a>(policy: &'a Value, list_of: &str) -> Vec<&'a str> {
        let all = list(&policy["spec"][list_of]).iter();
        all.map(|one| text(one, "expression")).collect()
    }
    let lists = ["matchConditions", "variables", "validations"];
    let of = |policy| lists.map(|name| of(policy, name)).concat();
    policies.iter().flat_map(of).collect()
}
