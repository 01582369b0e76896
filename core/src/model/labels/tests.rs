use proptest::prelude::*;

use super::*;

fn labels(text: &str) -> Labels {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn matches(selector: &str, of: &str) -> bool {
    Selector::parse(selector).unwrap().matches(&labels(of))
}

#[test]
fn selectors_mean_what_they_mean_to_kubernetes() {
    let shop = "app=shop tier=web empty= a.test/shard=1";
    for (selector, is_selected) in [
        ("app=shop", true),
        ("app==shop", true),
        ("app = bank", false),
        ("none=shop", false),
        ("app!=bank", true),
        ("app != shop", false),
        // A missing key is not equal to any value.
        ("none!=x", true),
        ("tier in (batch, web)", true),
        ("tier in(batch)", false),
        ("none in (x)", false),
        ("tier notin (batch,web)", false),
        ("tier notin (batch)", true),
        ("none notin (x)", true),
        ("app", true),
        ("none", false),
        ("!app", false),
        ("! none", true),
        ("empty=", true),
        ("empty", true),
        ("app=", false),
        ("none=", false),
        ("empty in ()", true),
        ("a.test/shard=1", true),
        ("app=shop,tier!=batch", true),
        (" app = shop , tier in (web) , !none ", true),
        ("app=shop,tier=batch", false),
        ("in", false),
        ("in in (in)", false),
        ("app=in", false),
    ] {
        assert_eq!(matches(selector, shop), is_selected, "{selector}");
    }
    assert!(matches("in in (in),notin", "in=in notin=x"));
    let shard = "ingresscontroller.operator.openshift.io/deployment-ingresscontroller=default";
    assert!(matches(shard, shard));
    assert!(matches("!app,app!=x,app notin (y)", ""));
}

#[test]
fn an_invalid_label_selector_is_refused_with_the_position() {
    for (text, error) in [
        ("", "at character 1 it ends where a label's key is expected"),
        ("a=b,", "at character 5 it ends where a label's key is expected"),
        ("a,,b", "at character 3 there is `,`, which is not a label key"),
        ("=b", "at character 1 there is `=`, which is not a label key"),
        (
            "a b",
            "at character 3 there is `b` where a comma or the end is expected",
        ),
        ("a=b=c", "at character 4 there is `=` where a comma"),
        ("!a=b", "at character 3 there is `=` where a comma"),
        ("a in b", "at character 6 values in parentheses are expected"),
        ("a in (b", "at character 8 values in parentheses"),
        ("a in (b c)", "at character 9 values in parentheses"),
        ("a in (b))", "at character 9 there is `)`"),
        ("a notin ,(b)", "at character 9 values in parentheses"),
        ("a: b", "at character 1 there is `a:`, which is not a label key"),
        ("a=b&x=y", "at character 3 there is `b&x`, which is not a label value"),
        ("A/B/c=d", "`A/B/c`, which is not a label key"),
        ("a>1", "at character 1 there is `a>1`, which is not a label key"),
        ("-a=b", "there is `-a`, which is not a label key"),
        ("a=b-", "at character 3 there is `b-`, which is not a label value"),
        ("A/b", "`A/b`, which is not a label key"),
        ("a./b", "`a./b`, which is not a label key"),
        ("é=1", "at character 1 there is `é`"),
        ("ü , é=1", "at character 1"),
        ("x=ü", "at character 3 there is `ü`, which is not a label value"),
    ] {
        let said = Selector::parse(text).unwrap_err().to_string();
        assert!(said.contains(error), "{text}: {said}");
    }
    let long = "x".repeat(64);
    assert!(Selector::parse(&long).is_err() && Selector::parse(&format!("a={long}")).is_err());
    assert!(Selector::parse(&format!("{0}=a,b={0}", &long[1..])).is_ok());
}

proptest! {
    #[test]
    fn any_text_is_a_selector_or_refused(text in "[a-c!=(),/ .é]{0,20}|\\PC{0,20}") {
        let _ = Selector::parse(&text).map(|selector| selector.matches(&labels("a=b")));
    }

    /// Operators and their opposites divide all sets of labels among them.
    #[test]
    fn opposites_are_opposite(key in "[a-c]", value in "[a-c]{0,1}", other in "[a-c]", set in "([a-c]=[a-c]? ){0,3}") {
        for (one, opposite) in [
            (format!("{key}={value}"), format!("{key}!={value}")),
            (format!("{key} in ({value},{other})"), format!("{key} notin ({value},{other})")),
            (key.clone(), format!("!{key}")),
        ] {
            prop_assert_ne!(matches(&one, &set), matches(&opposite, &set), "{} in {}", one, set);
        }
    }
}

fn sets(all: &[&str]) -> LabelSets {
    all.iter().map(|text| labels(text)).collect()
}

#[test]
fn label_sets_are_written_as_one_or_several() {
    for (all, written) in [
        (sets(&[]), "{}"),
        (sets(&["", ""]), "{}"),
        (sets(&["app=shop"]), r#"{"app":"shop"}"#),
        (sets(&["app=shop", "app=shop"]), r#"{"app":"shop"}"#),
        // An empty set counts beside one that is not.
        (sets(&["app=shop", ""]), r#"[{},{"app":"shop"}]"#),
    ] {
        assert_eq!(serde_json::to_string(&all).unwrap(), written);
        assert_eq!(serde_json::from_str::<LabelSets>(written).unwrap(), all);
    }
    let error = serde_json::from_str::<LabelSets>("5").unwrap_err().to_string();
    assert!(error.contains("expected labels, as in"), "{error}");
    assert_eq!(sets(&["app=shop"]).invalid_label(), None);
    let wrong = LabelSets(vec![Labels::from([("a b".into(), "c".into())])]).invalid_label();
    assert_eq!(wrong.as_deref(), Some("a b=c"));
}
