//! Messages of the rules for subsets of hosts when broken.

use signalbox_core::model::SubsetSize;

use super::{bent, documented, only_mistake, plus, right};

const OTHER: &str = "balancers: [{ url: \"http://lb-2:8089\", token_file: /t, name: lb-2 }]\n";

#[test]
fn a_size_is_a_number_a_part_or_all() {
    for (text, size) in [
        ("3", SubsetSize::Hosts(3)),
        ("50%", SubsetSize::Percent(50)),
        ("'50%'", SubsetSize::Percent(50)),
        ("all", SubsetSize::All),
    ] {
        let model = right(&bent("balance: least-connections", &format!("subset: {text}"))).model;
        assert_eq!(model.clusters[0].subset, Some(size), "{text}");
        assert_eq!((model.clusters[1].subset, model.subset.size), (None, SubsetSize::All));
        assert_eq!(
            right(&plus(&format!("subset: {{ size: {text} }}"))).model.subset.size,
            size
        );
    }
    for wrong in ["0", "0%", "101%", "65536", "half", "-1", "1.5", "%"] {
        only_mistake(
            &plus(&format!("subset: {{ size: '{wrong}' }}")),
            "subset.size",
            "is neither a number of hosts from 1 to 65535, a share such as 50%, nor `all`",
        );
    }
}

#[test]
fn each_balancer_has_a_name_of_its_own() {
    let model = right(&plus(&format!("{OTHER}subset: {{ name: lb-1, size: 1 }}"))).model;
    assert_eq!(
        (model.subset.name.as_deref(), model.balancers[0].name.as_deref()),
        (Some("lb-1"), Some("lb-2"))
    );
    assert_eq!(
        right(&plus(documented("subset:"))).model.subset.size,
        SubsetSize::Percent(50)
    );
    only_mistake(
        &plus(&format!("{OTHER}subset: {{ name: lb-2 }}")),
        "subset.name",
        "another of the `balancers` is already called `lb-2`",
    );
    let twice = OTHER.replace("}]", "}, { url: \"http://lb-3:8089\", token_file: /t, name: lb-2 }]");
    only_mistake(&plus(&twice), "balancers[1].name", "there already is a balancer `lb-2`");
}

#[test]
fn balancers_without_a_name_are_warned_about_if_subsets_are_set() {
    let nameless = OTHER.replace(", name: lb-2", "");
    let warnings = right(&plus(&format!("{nameless}subset: {{ size: 1 }}"))).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].message.contains("not all `balancers` have a `name`"),
        "{warnings:?}"
    );
    assert!(right(&plus(&nameless)).warnings.is_empty());
    assert!(
        right(&plus(&format!("{OTHER}subset: {{ size: 1 }}")))
            .warnings
            .is_empty()
    );
}
