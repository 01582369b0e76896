//! The server, or its etcd, dies and comes back.

use std::time::Instant;

use super::scene::{Scene, is_connected, route};

mod share_1 {
    use super::*;

    #[test]
    fn a_killed_api_server_removes_nothing_and_is_followed_again() {
        const NAME: &str = "a_killed_api_server_removes_nothing_and_is_followed_again";
        let Some(mut scene) = Scene::start(NAME) else {
            return;
        };
        scene.plane.kill_server();
        let view = scene.stands(|view| !is_connected(view));
        assert!(view["last_error"].is_string(), "{view:#}");
        scene.serves(&["web.test"]);
        assert!(scene.is_served("web.test"));
        scene.plane.start_server();
        let ready = Instant::now();
        scene.plane.put(&route("late", "late.test"));
        scene.serves(&["web.test", "late.test"]);
        println!(
            "a new Route was served {:?} after the server was ready",
            ready.elapsed()
        );
        scene.stands(is_connected);
        assert!(scene.is_served("late.test"));
    }

    #[test]
    fn without_etcd_the_names_stay_and_with_it_they_follow() {
        let Some(mut scene) = Scene::start("without_etcd_the_names_stay_and_with_it_they_follow") else {
            return;
        };
        scene.plane.kill_etcd();
        // The server's watches of etcd end, and it answers lists with errors.
        std::thread::sleep(std::time::Duration::from_secs(5));
        scene.serves(&["web.test"]);
        assert!(scene.is_served("web.test"));
        scene.plane.start_etcd();
        scene.plane.has("/apis/route.openshift.io/v1/routes");
        scene.plane.put(&route("late", "late.test"));
        scene.serves(&["web.test", "late.test"]);
        scene.stands(is_connected);
        // Server and etcd die at once.
        scene.plane.kill_server();
        scene.plane.kill_etcd();
        scene.stands(|view| !is_connected(view));
        scene.serves(&["web.test", "late.test"]);
        scene.plane.start_etcd();
        scene.plane.start_server();
        scene.plane.delete(&route("late", ""));
        scene.serves(&["web.test"]);
        scene.stands(is_connected);
    }
}
