//! Workflows of releases and of changes: actions are named by commits, one job may write, and everything is made and
//! tested by `cargo xtask`.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{
    Lint,
    alerts::{list, text},
    broken::Broken,
    files::{CI, RELEASE},
};

/// The job that makes the draft.
const WRITER: &str = "draft";
/// Words of commands that workflows may run only through xtask.
const MAKERS: [&str; 5] = ["cargo ", "dpkg-deb", "rpmbuild", "buildah", "docker"];

pub(super) const LINT: Lint = Lint {
    tools: &[],
    prepare: || Ok(()),
    check,
    broken: &[
        Broken {
            file: RELEASE,
            from: "actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683",
            to: "actions/checkout@v4",
            says: "is not a commit",
        },
        Broken {
            file: RELEASE,
            from: "permissions:\n  contents: read",
            to: "permissions:\n  contents: write",
            says: "the workflow has permissions",
        },
        Broken {
            file: RELEASE,
            from: "    needs: test\n",
            to: "",
            says: "job dist does not wait for test",
        },
        Broken {
            file: RELEASE,
            from: "cargo xtask dist --tagged",
            to: "cargo build --release",
            says: "is not done by `cargo xtask`",
        },
        Broken {
            file: RELEASE,
            from: "cargo xtask dist --tagged",
            to: "cargo xtask dist",
            says: "--tagged",
        },
        Broken {
            file: RELEASE,
            from: "persist-credentials: false",
            to: "persist-credentials: true",
            says: "keeps credentials",
        },
        Broken {
            file: RELEASE,
            from: " --draft",
            to: "",
            says: "is no draft",
        },
        Broken {
            file: CI,
            from: "      - run: .ci/run\n",
            to: "",
            says: "job change does not run .ci/run",
        },
        Broken {
            file: CI,
            from: "cargo xtask test --all",
            to: "cargo xtask test",
            says: "job everything does not run cargo xtask test --all",
        },
    ],
};

fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (file, own) in [(RELEASE, of_release as fn(&Value) -> Vec<String>), (CI, of_changes)] {
        let source = fs::read_to_string(root.join(file)).with_context(|| format!("reading {file}"))?;
        let workflow: Value = serde_saphyr::from_str(&source).with_context(|| format!("{file} is no YAML"))?;
        let mut found = of_any(&workflow)?;
        found.extend(own(&workflow));
        problems.extend(found.into_iter().map(|problem| format!("{file}: {problem}")));
    }
    Ok(problems)
}

/// Problems that no workflow may have.
fn of_any(workflow: &Value) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    if workflow["permissions"] != serde_json::json!({ "contents": "read" }) {
        problems.push(format!("the workflow has permissions {}", workflow["permissions"]));
    }
    let jobs = workflow["jobs"].as_object().context("the workflow has no jobs")?;
    for (name, job) in jobs {
        if name != WRITER && !job["permissions"].is_null() {
            problems.push(format!("job {name} may {}", job["permissions"]));
        }
        for step in list(&job["steps"]) {
            problems.extend(step_problems(name, step));
        }
    }
    Ok(problems)
}

fn of_changes(workflow: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (job, command) in [("change", ".ci/run"), ("everything", "cargo xtask test --all")] {
        let steps = list(&workflow["jobs"][job]["steps"]);
        if !steps.iter().any(|step| text(step, "run") == command) {
            problems.push(format!("job {job} does not run {command}"));
        }
    }
    problems
}

fn of_release(workflow: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (job, needed) in [("dist", "test"), (WRITER, "dist")] {
        if text(&workflow["jobs"][job], "needs") != needed {
            problems.push(format!("job {job} does not wait for {needed}"));
        }
    }
    for (job, word, fault) in [
        (
            "dist",
            "cargo xtask dist --tagged",
            "packages what is no release: `dist` lacks --tagged",
        ),
        (WRITER, "--draft", "what is released is no draft"),
    ] {
        let steps = list(&workflow["jobs"][job]["steps"]);
        if !steps.iter().any(|step| text(step, "run").contains(word)) {
            problems.push(format!("job {job}: {fault}"));
        }
    }
    problems
}

fn step_problems(job: &str, step: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let (action, run) = (text(step, "uses"), text(step, "run"));
    let commit = action.split_once('@').map_or("", |(_, commit)| commit);
    if !action.is_empty() && (commit.len() != 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        problems.push(format!("job {job}: {action}: the version after @ is not a commit"));
    }
    if action.starts_with("actions/checkout@") && step["with"]["persist-credentials"] != false {
        problems.push(format!("job {job}: the checkout keeps credentials"));
    }
    let others = run.replace("cargo xtask ", "");
    if MAKERS.iter().any(|maker| others.contains(maker)) {
        problems.push(format!("job {job}: `{run}` is not done by `cargo xtask`"));
    }
    problems
}
