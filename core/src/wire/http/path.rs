//! Which path of a host's routes a request belongs to: the longest one, as OpenShift's router finds it.
//!
//! Paths are compared as raw bytes: nothing is decoded and no dot segment resolved, because balancer and host could
//! then understand two different paths. [`super::path_reading`] finds paths where they are.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// Routes of a host by path.
///
/// A path matches itself and the paths below it, by whole segments: `/foo` for `/foo` and `/foo/x`, not for `/foobar`;
/// `/foo/` only for paths that begin with it; an empty path for every request, `*` of OPTIONS too.
#[derive(Clone, Debug)]
pub struct PathTable<T> {
    routes: HashMap<Box<[u8]>, T, FixedState>,
    /// Lengths of paths, the greatest first: a look-up costs one comparison each, however long a request's path is.
    lengths: Vec<usize>,
}

impl<T> PathTable<T> {
    /// Table of paths. Of equal paths the last one counts.
    #[must_use]
    pub fn new(routes: impl IntoIterator<Item = (Box<[u8]>, T)>) -> Self {
        let routes: HashMap<_, _, _> = routes.into_iter().collect();
        let mut lengths: Vec<usize> = routes.keys().map(|path| path.len()).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { routes, lengths }
    }

    /// Route of the longest path that a request's path, without its query, belongs to.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<&T> {
        let candidates = self.lengths.iter().filter_map(|&length| {
            let (route, rest) = path.split_at_checked(length)?;
            (is_whole(route, rest)).then_some(route)
        });
        candidates.into_iter().find_map(|route| self.routes.get(route))
    }
}

/// Whether a text can be the path of a route: bytes as requests have them, without a query.
#[must_use]
pub fn is_route_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'?' | b'#'))
}

/// Whether a request's path belongs to a route's, as [`PathTable`] has it.
#[must_use]
pub fn covers(route: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(route).is_some_and(|rest| is_whole(route, rest))
}

/// Target whose path begins with `replacement` in place of a route's path `prefix`, as OpenShift's router and nginx
/// rewrite: one slash between both parts, the query stays. `None` for a target that is not below the route's path, such
/// as `*`.
#[must_use]
pub fn rewrite(prefix: &[u8], replacement: &[u8], target: &[u8]) -> Option<Vec<u8>> {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    let mut rest = target.strip_prefix(prefix)?;
    if target.is_empty() || !matches!(rest.first(), None | Some(b'/' | b'?')) {
        return None;
    }
    if replacement.ends_with(b"/") {
        rest = rest.strip_prefix(b"/").unwrap_or(rest);
    }
    Some([replacement, rest].concat())
}

/// Whether a route's path ends at the end of a segment of the request's path, of which `rest` is left.
fn is_whole(route: &[u8], rest: &[u8]) -> bool {
    route.is_empty() || route.ends_with(b"/") || rest.is_empty() || rest.starts_with(b"/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(paths: &[&str]) -> PathTable<String> {
        PathTable::new(paths.iter().map(|path| (path.as_bytes().into(), (*path).to_owned())))
    }

    #[test]
    fn a_path_is_rewritten_as_openshifts_router_does() {
        for (prefix, replacement, target, expected) in [
            ("/foo", "/", "/foo", Some("/")),
            ("/foo", "/", "/foo/", Some("/")),
            ("/foo", "/", "/foo/bar?x=/foo", Some("/bar?x=/foo")),
            ("/foo", "/", "/foo?x", Some("/?x")),
            ("/foo", "/bar", "/foo", Some("/bar")),
            ("/foo", "/bar", "/foo/", Some("/bar/")),
            ("/foo", "/baz", "/foo/bar/", Some("/baz/bar/")),
            ("/foo/", "/", "/foo/bar", Some("/bar")),
            ("/foo/", "/bar", "/foo/", Some("/bar/")),
            ("/", "/v2", "/x", Some("/v2/x")),
            ("/", "/v2/", "/", Some("/v2/")),
            ("/foo", "/", "/foobar", None),
            ("/", "/v2", "*", None),
            ("/", "/v2", "", None),
        ] {
            let found = rewrite(prefix.as_bytes(), replacement.as_bytes(), target.as_bytes());
            let found = found.map(|target| String::from_utf8(target).unwrap());
            assert_eq!(found.as_deref(), expected, "{prefix} -> {replacement}: {target}");
        }
    }

    #[test]
    fn paths_match_in_whole_segments() {
        for (route, matching, others) in [
            (
                "/foo",
                &["/foo", "/foo/", "/foo/x", "/foo//"][..],
                &["/foobar", "/Foo", "/fo", "/", "*", "/foo%2fx"][..],
            ),
            ("/foo/", &["/foo/", "/foo/x"], &["/foo", "/foobar"]),
            ("/", &["/", "/x", "//"], &["*", ""]),
            ("", &["/", "/x", "*", ""], &[]),
            ("/a/b", &["/a/b", "/a/b/c"], &["/a", "/a/", "/a/bc", "/x/../a/b"]),
        ] {
            let table = table(&[route]);
            for path in matching {
                assert!(table.find(path.as_bytes()).is_some(), "{path} belongs to {route:?}");
            }
            for path in others {
                assert!(
                    table.find(path.as_bytes()).is_none(),
                    "{path} does not belong to {route:?}"
                );
            }
        }
    }

    #[test]
    fn the_longest_path_wins() {
        let table = table(&["", "/", "/app", "/app/", "/app/admin", "/application"]);
        for (path, route) in [
            ("*", ""),
            ("/x", "/"),
            ("/app", "/app"),
            ("/app/", "/app/"),
            ("/app/x", "/app/"),
            ("/app/admin/x", "/app/admin"),
            ("/app/administrator", "/app/"),
            ("/application/x", "/application"),
            ("/app%2fadmin", "/"),
        ] {
            assert_eq!(table.find(path.as_bytes()).map(String::as_str), Some(route), "{path}");
        }
    }

    proptest! {
        /// The router's own rule: the regular expression `^PATH(/.*)?$`, or `^PATH(.*)?$` after a slash; longest first.
        #[test]
        fn the_table_finds_what_a_walk_over_all_routes_finds(routes in prop::collection::vec("(/[ab]{0,2}){0,3}/?", 0..8), path in "(/[ab]{0,2}){0,4}/?") {
            let matches = |route: &str| {
                let rest = path.strip_prefix(route);
                rest.is_some_and(|rest| route.is_empty() || route.ends_with('/') || rest.is_empty() || rest.starts_with('/'))
            };
            let longest = routes.iter().filter(|route| matches(route)).max_by_key(|route| route.len());
            let names: Vec<&str> = routes.iter().map(String::as_str).collect();
            let table = table(&names);
            prop_assert_eq!(table.find(path.as_bytes()), longest);
        }
    }
}
