//! Examples for users who come from another balancer: whole files without warnings.

use super::right;

/// Pages, and how many examples each has at least: a page whose blocks are not found would pass with none.
const PAGES: [(&str, &str, usize); 3] = [
    ("from-haproxy.md", include_str!("../../../../docs/from-haproxy.md"), 4),
    (
        "from-openshift-router.md",
        include_str!("../../../../docs/from-openshift-router.md"),
        5,
    ),
    ("from-f5.md", include_str!("../../../../docs/from-f5.md"), 5),
];

#[test]
fn the_documented_examples_are_right_and_without_warnings() {
    for (page, text, least) in PAGES {
        let examples: Vec<&str> = text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert!(examples.len() >= least, "{page}: {} examples", examples.len());
        for example in examples {
            let warnings = right(example).warnings;
            assert_eq!(warnings, [], "{page}:\n{example}");
        }
    }
}
