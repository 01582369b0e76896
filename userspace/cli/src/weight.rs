//! `signalbox weight`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use hyper::Method;
use signalbox_api::weights::{ChangesAnswer, Shares, SharesByKey, WeightsRequest};

use super::show::{self, TableForm};
use super::{OutputFormat, ShowArgs, client};

#[derive(clap::Args)]
pub(super) struct WeightArgs {
    /// Names of routes, and the weights of their clusters from 0 to 100: app.example.com east=20 west=80. A cluster
    /// that is left out gets nothing.
    #[arg(value_name = "NAME|CLUSTER=WEIGHT")]
    words: Vec<String>,
    /// All names that objects of this namespace (or application) claim, in any cluster, in addition to names
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// All names with a claim whose labels now match this Kubernetes label selector, such as app=shop,tier!=batch, in
    /// addition to names
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Vec<String>,
    /// File with further names: a name and its weights on each line, # begins a comment
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Remove the weights: those of the configuration file and of the clusters apply again
    #[arg(long)]
    clear: bool,
    /// Show what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Set the weights even if a name is left without a host that takes connections
    #[arg(long)]
    force: bool,
    /// Print only the rows of the changes, without titles.
    #[arg(long, requires = "dry_run")]
    no_headers: bool,
    #[command(flatten)]
    show: ShowArgs,
}

pub(super) fn run(weight: &WeightArgs) -> anyhow::Result<ExitCode> {
    let body = body(weight)?;
    let body = serde_json::to_value(&body)?;
    let answer = client::change(&weight.show.socket, &Method::PUT, "/api/v1/weights", Some(&body))?;
    if weight.show.output != OutputFormat::Table {
        show::emit(&answer, weight.show.output)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !weight.dry_run {
        println!("the weights are in force");
        return Ok(ExitCode::SUCCESS);
    }
    let changes = client::decode::<ChangesAnswer>(answer)?.changes;
    if changes.is_empty() {
        println!("nothing would change");
    } else {
        let form = TableForm::of_output().with_headers(!weight.no_headers);
        show::print_text(&show::rows(&changes, form))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn body(weight: &WeightArgs) -> anyhow::Result<WeightsRequest> {
    let (names, clusters) = words(weight.words.iter().map(String::as_str))?;
    let has_names = !(names.is_empty() && weight.namespace.is_empty() && weight.selector.is_empty());
    if weight.clear && !clusters.is_empty() {
        bail!("--clear removes weights: give no weights with it");
    }
    if has_names && clusters.is_empty() && !weight.clear {
        bail!("which weights? For example: signalbox weight app.example.com east=20 west=80");
    }
    if !has_names && weight.file.is_none() {
        bail!("which names? For example: signalbox weight app.example.com east=20 west=80");
    }
    let set = (!weight.clear).then_some(clusters);
    let mut routes = SharesByKey::new();
    if let Some(path) = &weight.file {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        for (number, line) in (1..).zip(text.lines()) {
            let place = || format!("{}, line {number}", path.display());
            let line = line.split('#').next().unwrap_or_default();
            let (names, clusters) = words(line.split_whitespace()).with_context(place)?;
            if !names.is_empty() && clusters.is_empty() && !weight.clear {
                bail!(
                    "{}: no weights; write, for example: app.example.com east=20 west=80",
                    place()
                );
            }
            if names.is_empty() && !clusters.is_empty() {
                bail!("{}: no name before the weights", place());
            }
            routes.extend(
                names
                    .into_iter()
                    .map(|name| (name, (!weight.clear).then(|| clusters.clone()))),
            );
        }
    }
    routes.extend(names.into_iter().map(|name| (name, set.clone())));
    let each = |groups: &[String]| groups.iter().map(|group| (group.clone(), set.clone())).collect();
    Ok(WeightsRequest {
        routes,
        namespaces: each(&weight.namespace),
        selectors: each(&weight.selector),
        dry_run: weight.dry_run,
        force: weight.force,
    })
}

/// Splits words into names, and clusters with their weights.
fn words<'a>(words: impl Iterator<Item = &'a str>) -> anyhow::Result<(Vec<String>, Shares)> {
    let (mut names, mut clusters) = (Vec::new(), Shares::new());
    for word in words {
        let Some((cluster, number)) = word.split_once('=') else {
            names.push(word.to_owned());
            continue;
        };
        let number = number.parse::<u32>().ok().filter(|number| *number <= 100);
        let number = number.with_context(|| format!("{word}: a weight is a whole number from 0 to 100"))?;
        if clusters.insert(cluster.to_owned(), number).is_some() {
            bail!("{cluster} has two weights");
        }
    }
    Ok((names, clusters))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        weight: WeightArgs,
    }

    fn of(line: &str) -> anyhow::Result<Value> {
        let line = Line::try_parse_from(std::iter::once("weight").chain(line.split(' ')))?;
        Ok(serde_json::to_value(body(&line.weight)?)?)
    }

    #[test]
    fn names_and_weights_may_be_mixed() {
        let body = of("a.test east=20 b.test west=80 --dry-run").unwrap();
        let both = json!({ "east": 20, "west": 80 });
        assert_eq!(
            body,
            json!({
                "routes": { "a.test": both, "b.test": both },
                "namespaces": {},
                "selectors": {},
                "dry_run": true,
                "force": false,
            })
        );
        let body = of("--namespace shop --clear").unwrap();
        assert_eq!(body["namespaces"], json!({ "shop": null }));
        let body = of("-l app=shop,tier!=batch --selector !app east=1").unwrap();
        let east = json!({ "east": 1 });
        assert_eq!(body["selectors"], json!({ "app=shop,tier!=batch": east, "!app": east }));
        assert_eq!((&body["routes"], &body["namespaces"]), (&json!({}), &json!({})));
    }

    #[test]
    fn an_invalid_weight_command_is_refused_with_the_reason() {
        for (line, why) in [
            ("a.test", "which weights?"),
            ("--selector app=shop", "which weights?"),
            ("east=1", "which names?"),
            ("a.test east=101", "east=101: a weight is a whole number from 0 to 100"),
            ("a.test east=x", "east=x"),
            ("a.test east=1 east=2", "two weights"),
            ("a.test --clear east=1", "--clear"),
            ("--file /nowhere/at/all", "/nowhere/at/all"),
        ] {
            let error = format!("{:#}", of(line).unwrap_err());
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_has_a_name_and_weights_on_each_line() {
        let dir = std::env::temp_dir().join(format!("signalbox-weights-{}", std::process::id()));
        std::fs::write(
            &dir,
            "# tonight\na.test east=50 west=50 # half\n\nb.test c.test west=100\n",
        )
        .unwrap();
        let body = of(&format!("--file {} d.test east=1", dir.display())).unwrap();
        assert_eq!(body["routes"]["a.test"], json!({ "east": 50, "west": 50 }));
        assert_eq!(body["routes"]["c.test"], json!({ "west": 100 }));
        assert_eq!(body["routes"]["d.test"], json!({ "east": 1 }));
        std::fs::write(&dir, "a.test\n").unwrap();
        let error = format!("{:#}", of(&format!("--file {}", dir.display())).unwrap_err());
        assert!(error.contains("line 1"), "{error}");
        std::fs::remove_file(&dir).unwrap();
    }
}
