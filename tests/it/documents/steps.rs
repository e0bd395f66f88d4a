//! The steps by which all cloud credentials of a user are renewed, as their page shows them. Each command
//! is run for real, and the page shows what is then on the screen.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use testbed::{Bed, Operator, Start, eventually};

use super::blocks::blocks;
use super::commands::Desk;
use crate::hygiene::read;
use crate::support::LATER;

const PAGE: &str = "docs/credentials.md";
const HEADING: &str = "### Renew all of a user's, in four steps\n";
const NAMESPACE: &str = "rancher-credentials";
/// Names of a user and of a credential on the page.
const SHOWN: [&str; 2] = ["u-abcde", "cc-abcde"];

/// Runs the commands one by one, and the operator as the Deployment then says. `names`: user and
/// credential of the Rancher.
pub(super) async fn renew_all(desk: &Desk, bed: &Bed, names: [&str; 2]) -> Result<()> {
    let page = read(PAGE);
    let section = page.split(HEADING).nth(1).context("no such heading")?;
    let blocks = blocks(PAGE, section);
    let first = |language: &str| {
        let found = blocks.iter().find(|block| block.language == language);
        found.map(|block| block.text.clone()).with_context(|| format!("no block of {language}"))
    };
    let (commands, shown, listing) = (first("sh")?, first("text")?, first("console")?);
    bed.kubectl(&["delete", "namespace", NAMESPACE, "--wait", "--timeout=5m"]).await?;

    let began = Instant::now();
    let mut screen = String::new();
    for command in commands.replace("\\\n", " ").lines() {
        let asked = Instant::now();
        let said = desk.run(command, true).await.with_context(|| command.to_owned())?;
        println!("$ {command}\n{said}# {:?}\n", asked.elapsed());
        screen.push_str(&said);
    }
    let screen = plain(&screen, names);
    let mut rest = screen.as_str();
    for part in shown.split("...\n") {
        let part = plain(part, names);
        let found =
            rest.split_once(&part).with_context(|| format!("{part:?} is not in {rest:?}"))?;
        rest = found.1;
    }

    let _operator = operator(bed).await?;
    let (command, rows) = listing.split_once('\n').context("no list")?;
    let command = command.strip_prefix("$ ").context("no command")?;
    // The last column is the age.
    let row = |row: &str| plain(row, names).rsplit_once(' ').map(|(row, _)| row.to_owned());
    let wanted: Vec<String> = rows.lines().filter_map(row).collect();
    let list = eventually(LATER, "the list of the page", async || {
        let list = desk.run(command, true).await.map_err(|error| format!("{error:#}"))?;
        let found: Vec<String> = list.lines().filter_map(row).collect();
        if found == wanted { Ok(Some(list)) } else { Err(format!("{list}, not {wanted:#?}")) }
    })
    .await?;
    println!("$ {command}\n{list}# {:?} after the first command", began.elapsed());
    ensure!(wanted.len() == 4, "{wanted:#?}");
    Ok(())
}

/// Text with one space between words, with the names of the page, and without figures: times differ.
fn plain(text: &str, names: [&str; 2]) -> String {
    let text = names
        .iter()
        .zip(SHOWN)
        .fold(text.to_owned(), |text, (name, shown)| text.replace(*name, shown));
    let text = text.replace(|c: char| c.is_ascii_digit(), "0");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Starts the operator with the namespaces that its Deployment names.
async fn operator(bed: &Bed) -> Result<Operator> {
    let name = "harvester-guest-operator";
    let deployments: Api<Deployment> = Api::namespaced(bed.admin(), "harvester-system");
    let pod = deployments.get(name).await?.spec.and_then(|spec| spec.template.spec);
    let variables = pod.into_iter().flat_map(|pod| pod.containers).filter_map(|c| c.env);
    let namespaces = variables
        .flatten()
        .find(|variable| variable.name == "HGO_CREDENTIAL_NAMESPACES")
        .and_then(|variable| variable.value)
        .context("the Deployment names no namespaces")?;
    let options = vec!["--credential-namespaces".to_owned(), namespaces];
    let binary = Path::new(env!("CARGO_BIN_EXE_harvester-guest-operator"));
    let operator = Operator::start(bed, binary, Start { options, ..Start::default() }).await?;
    operator.leads().await?;
    Ok(operator)
}
