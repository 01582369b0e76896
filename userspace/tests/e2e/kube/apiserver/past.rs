//! The server's past differs from the one that the balancer knows: a backup, and compacted history.

use serde_json::{Value, json};

use super::objects::path;
use super::scene::{Scene, is_connected, route};

/// Versions that the backup does not have: more than a server writes when it starts.
const WRITES: u32 = 300;

fn count(view: &Value, event: &str) -> u64 {
    view["events"][event].as_u64().unwrap_or(0)
}

mod share_1 {
    use super::*;

    #[test]
    fn an_etcd_restored_from_backup_yields_the_backups_routes() {
        const NAME: &str = "an_etcd_restored_from_backup_yields_the_backups_routes";
        let Some(mut scene) = Scene::start(NAME) else {
            return;
        };
        scene.plane.back_up();
        scene.plane.put(&route("later", "later.test"));
        scene.plane.put(&route("web", "renamed.test"));
        let web = path(&route("web", ""));
        for at in 0..WRITES {
            let note = json!({ "metadata": { "annotations": { "at": at.to_string() } } });
            scene.plane.must("PATCH", &web, Some(&note));
        }
        scene.serves(&["renamed.test", "later.test"]);
        scene.stands(is_connected);
        let version = |scene: &Scene| -> u64 {
            let routes = scene.plane.must("GET", "/apis/route.openshift.io/v1/routes", None);
            routes["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
        };
        let before = version(&scene);

        scene.plane.kill_server();
        scene.plane.kill_etcd();
        scene.stands(|view| !is_connected(view));
        scene.plane.restore();
        scene.plane.start_etcd();
        scene.plane.start_server();
        let after = version(&scene);
        assert!(after < before, "{after}, {before}");
        scene.serves(&["web.test"]);
        assert!(scene.is_served("web.test") && !scene.is_served("later.test"));
        scene.plane.put(&route("new", "new.test"));
        scene.serves(&["web.test", "new.test"]);
        let view = scene.stands(is_connected);
        assert!(count(&view, "went_back") > 0, "{view:#}");
    }

    #[test]
    fn changes_compacted_while_the_api_server_is_down_are_relisted() {
        let Some(mut scene) = Scene::start("changes_compacted_while_the_api_server_is_down_are_relisted") else {
            return;
        };
        scene.plane.put(&route("gone", "gone.test"));
        scene.serves(&["web.test", "gone.test"]);
        let expired = count(&scene.source(), "expired");
        scene.plane.kill_server();
        scene.stands(|view| !is_connected(view));
        scene
            .plane
            .delete_and_compact("/registry/route.openshift.io/routes/shop/gone");
        scene.plane.start_server();
        scene.serves(&["web.test"]);
        let view = scene.stands(is_connected);
        assert!(count(&view, "expired") > expired, "{view:#}");
    }
}
