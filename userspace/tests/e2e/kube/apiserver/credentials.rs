//! Tokens of the account are replaced in time, and revoked.

use super::scene::{Scene, is_connected, route, says};

mod share_1 {
    use super::*;

    #[test]
    fn only_a_revoked_token_is_reported_until_it_is_replaced() {
        const NAME: &str = "only_a_revoked_token_is_reported_until_it_is_replaced";
        let Some(mut scene) = Scene::start(NAME) else {
            return;
        };
        let second = scene.new_token("second");
        scene.write_token(&second);
        scene.revoke("signalbox-token");
        scene.plane.put(&route("in-time", "in-time.test"));
        scene.serves(&["web.test", "in-time.test"]);
        let view = scene.stands(is_connected);
        assert!(view["events"]["unauthorized"].is_null(), "{view:#}");

        scene.revoke("second");
        scene.stands(|view| !is_connected(view) && says(view, "401"));
        scene.plane.put(&route("unseen", "unseen.test"));
        assert!(scene.is_served("web.test") && scene.is_served("in-time.test"));
        scene.serves(&["web.test", "in-time.test"]);
        let third = scene.new_token("third");
        scene.write_token(&third);
        scene.serves(&["web.test", "in-time.test", "unseen.test"]);
        scene.stands(is_connected);
    }
}
