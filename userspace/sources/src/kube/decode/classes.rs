//! Decodes classes of Ingresses, which decide on Ingresses that name no class.

use serde::Deserialize;
use serde_json::Value;
use signalbox_core::discovered::claims::IngressClass;

use super::Metadata;

/// Annotation that makes a class the default, for Ingresses without a class.
const IS_DEFAULT: &str = "ingressclass.kubernetes.io/is-default-class";

#[derive(Deserialize)]
struct RawClass {
    metadata: Metadata,
}

/// Decodes a class of Ingresses.
///
/// # Errors
///
/// The object has no name.
pub fn class(value: &Value) -> Result<IngressClass, serde_json::Error> {
    let RawClass { metadata } = RawClass::deserialize(value)?;
    Ok(IngressClass {
        is_default: metadata.annotations.get(IS_DEFAULT).is_some_and(|text| text == "true"),
        name: metadata.name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_class_is_the_default_if_it_says_true() {
        let class = |value: Value| {
            let metadata = json!({"name": "public", "annotations": {IS_DEFAULT: value}});
            class(&json!({"metadata": metadata, "spec": {"controller": "openshift.io/ingress-to-route"}}))
        };
        assert!(class(json!("true")).unwrap().is_default);
        assert!(!class(json!("false")).unwrap().is_default);
        assert!(class(json!(5)).is_err());
    }
}
