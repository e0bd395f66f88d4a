//! Tests of the output, as text and parsed, and of invalid URLs.

use serde_json::Value;

use super::*;

fn material() -> TokenMaterial {
    TokenMaterial { token: "eyJ.a.b\"\n".to_owned().into(), authority: b"PEM".to_vec() }
}

const CONFIG: &str = r#"apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    server: "https://192.168.7.10:6443"
    certificate-authority-data: UEVN
contexts:
- name: default
  context:
    cluster: default
    namespace: "guests"
    user: default
current-context: default
users:
- name: default
  user:
    token: "eyJ.a.b\"\n"
"#;

#[test]
fn texts_are_what_clients_read() {
    let of = |form| {
        let guest = GuestCluster::new("blue", "guests").unwrap();
        text(form, &guest, "https://192.168.7.10:6443", &material(), true)
    };
    assert_eq!(*of(OutputForm::Kubeconfig), CONFIG);
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
    assert_eq!(read(CONFIG)["users"][0]["user"]["token"], "eyJ.a.b\"\n");
    let decoded = |value: &Value| {
        String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap()
    };
    assert_eq!(decoded(&read(&of(OutputForm::Secret))["data"]["cloud-provider-config"]), CONFIG);
    let encoded = STANDARD.encode(CONFIG);
    let file = |path: &str| {
        format!(
            "- encoding: b64\n  content: {encoded}\n  owner: root:root\n  path: {path}\n  permissions: '0600'\n"
        )
    };
    let (rke2, old) = (
        "/var/lib/rancher/rke2/etc/config-files/cloud-provider-config",
        "/etc/kubernetes/cloud-config",
    );
    let golden = format!("#cloud-config\nwrite_files:\n{}{}", file(rke2), file(old));
    assert_eq!(*of(OutputForm::CloudInitRke2), golden);
    let golden = format!("#cloud-config\nwrite_files:\n{}{}", file(old), file(rke2));
    assert_eq!(*of(OutputForm::CloudInitK3s), golden);
    assert_eq!(decoded(&read(&golden)["write_files"][1]["content"]), CONFIG);
    // YAML would read `true` and `123` without quotes as a boolean and a number.
    let odd = GuestCluster::new("true", "123").unwrap();
    let secret = read(&text(OutputForm::RancherSecret, &odd, "https://h", &material(), true));
    let annotations = &secret["metadata"]["annotations"];
    assert_eq!(annotations["v2prov-secret-authorized-for-cluster"], "true");
    assert_eq!(secret["metadata"]["name"], "harvesterconfig-true");
    let config = read(&decoded(&secret["data"]["credential"]));
    assert_eq!(config["contexts"][0]["context"]["namespace"], "123");
}

#[test]
fn charts_of_k3s_mount_the_secret_beside_them() {
    let guest = GuestCluster::new("123", "guests").unwrap();
    let of = |driver| {
        let all = text(OutputForm::HelmChartK3s, &guest, "https://h", &material(), driver);
        let read = |text| serde_saphyr::from_str::<Value>(text).unwrap();
        all.split("---\n").map(read).collect::<Vec<_>>()
    };
    let objects = of(true);
    let [secret, provider, driver] = &objects[..] else { panic!("{objects:?}") };
    let alone = text(OutputForm::Secret, &guest, "https://h", &material(), true);
    assert_eq!(*secret, serde_saphyr::from_str::<Value>(&alone).unwrap());
    let values = |chart: &Value| -> Value {
        serde_saphyr::from_str(chart["spec"]["valuesContent"].as_str().unwrap()).unwrap()
    };
    for (chart, name) in [(provider, "harvester-cloud-provider"), (driver, "harvester-csi-driver")]
    {
        assert_eq!(
            (&chart["kind"], &chart["metadata"]["name"]),
            (&"HelmChart".into(), &name.into())
        );
        let named = &values(chart)["cloudConfig"]["secretName"];
        assert_eq!(*named, secret["metadata"]["name"]);
    }
    let values = values(provider);
    assert_eq!(values["global"]["cattle"]["clusterName"], "123");
    assert_eq!(values["cloudConfigPath"], "");
    let key = values["cloudConfig"]["secretKey"].as_str().unwrap();
    assert!(secret["data"][key].is_string());
    assert_eq!(of(false), objects[..2]);
}

#[test]
fn servers_are_checked() {
    for good in
        ["https://h", "https://h:6443", "https://[fd00::1]:6443", "https://r/k8s/clusters/local"]
    {
        assert_eq!(server(good).as_deref(), Ok(good));
    }
    assert_eq!(server("https://h/").as_deref(), Ok("https://h"));
    for bad in [
        "",
        "h",
        "http://h",
        "https://",
        "https:///x",
        "https://:1",
        "https://h:",
        "https://h:x",
        "https://h:65536",
        "https://h:0",
        "https://[h]",
        "https://[::1",
        "https://[::1]x",
        "https://u@h",
        "https://h?x",
        "https://h#x",
        "https://h x",
        "https://h\n",
        "https://fd00::1",
    ] {
        assert!(server(bad).is_err_and(|why| why.starts_with("--server")), "{bad}");
    }
    assert_eq!(default_server(Some("10.0.0.1")).as_deref(), Ok("https://10.0.0.1:6443"));
    assert_eq!(default_server(Some(" fd00::1\n")).as_deref(), Ok("https://[fd00::1]:6443"));
    for bad in [None, Some(""), Some("host"), Some("0.0.0.0"), Some("127.0.0.1"), Some("::1")] {
        assert!(default_server(bad).is_err_and(|why| why.starts_with("--server")), "{bad:?}");
    }
}
