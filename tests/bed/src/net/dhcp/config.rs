//! Owns the servers' configurations and command lines.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{Kind, Reservation, Scope};

/// Name of every server's lease file.
pub(super) const LEASES: &str = "leases";

/// Writes the server's configuration files, and returns its arguments.
pub(super) fn write(kind: Kind, interface: &str, scope: &Scope, dir: &Path) -> Result<Vec<String>> {
    let leases = dir.join(LEASES).display().to_string();
    let config = dir.join("config");
    match kind {
        Kind::Dnsmasq => return Ok(dnsmasq(interface, scope, &leases)),
        Kind::Kea => fs::write(&config, kea(interface, scope, &leases).to_string())?,
        Kind::Isc => {
            fs::write(&config, isc(scope))?;
            // dhcpd does not start without a lease file.
            fs::OpenOptions::new().create(true).append(true).open(&leases)?;
        }
        Kind::Udhcpd => fs::write(&config, udhcpd(interface, scope, &leases))?,
    }
    let config = config.display().to_string();
    let pid = dir.join("pid").display().to_string();
    Ok(match kind {
        Kind::Dnsmasq => Vec::new(),
        Kind::Kea => vec!["-c".to_owned(), config],
        Kind::Isc => ["-4", "-d", "-cf", &config, "-lf", &leases, "-pf", &pid, interface]
            .map(str::to_owned)
            .to_vec(),
        Kind::Udhcpd => vec!["-f".to_owned(), config],
    })
}

fn dnsmasq(interface: &str, scope: &Scope, leases: &str) -> Vec<String> {
    let (first, last) = (scope.at(scope.range.0), scope.at(scope.range.1));
    let mut args = vec![
        "--keep-in-foreground".to_owned(),
        "--log-facility=-".to_owned(),
        "--conf-file=/dev/null".to_owned(),
        "--port=0".to_owned(),
        "--user=root".to_owned(),
        "--group=root".to_owned(),
        "--pid-file".to_owned(),
        "--log-dhcp".to_owned(),
        // Without this option it waits three seconds for an echo before each offer, one after the
        // other.
        "--no-ping".to_owned(),
        "--bind-interfaces".to_owned(),
        "--except-interface=lo".to_owned(),
        format!("--interface={interface}"),
        format!("--dhcp-leasefile={leases}"),
        format!("--dhcp-range={first},{last},{},{}s", scope.netmask(), scope.seconds),
        format!("--dhcp-option=option:router,{}", scope.at(254)),
        format!("--dhcp-option=option:dns-server,{}", scope.at(253)),
        // Without this option it refuses to serve so many clients.
        "--dhcp-lease-max=2000".to_owned(),
    ];
    args.extend(scope.reserved.iter().map(|(client, number)| match client {
        Reservation::Mac(mac) => format!("--dhcp-host={mac},{}", scope.at(*number)),
        Reservation::ClientId(id) => format!("--dhcp-host=id:{id},{}", scope.at(*number)),
    }));
    if scope.authoritative {
        args.push("--dhcp-authoritative".to_owned());
    }
    if let Some((renew, rebind)) = scope.timers {
        args.push(format!("--dhcp-option=option:T1,{renew}s"));
        args.push(format!("--dhcp-option=option:T2,{rebind}s"));
    }
    args
}

fn kea(interface: &str, scope: &Scope, leases: &str) -> serde_json::Value {
    let mut subnet = json!({
        "id": 1,
        "subnet": format!("{}/{}", scope.at(0), scope.prefix),
        "pools": [{"pool": format!("{} - {}", scope.at(scope.range.0), scope.at(scope.range.1))}],
        "option-data": [
            {"name": "routers", "data": scope.at(254)},
            {"name": "domain-name-servers", "data": scope.at(253)},
        ],
        "valid-lifetime": scope.seconds,
        "min-valid-lifetime": scope.seconds,
        "max-valid-lifetime": scope.seconds,
        "authoritative": scope.authoritative,
    });
    let reservation = |(client, number): &(Reservation, u16)| {
        let (key, value) = match client {
            Reservation::Mac(mac) => ("hw-address", mac),
            Reservation::ClientId(id) => ("client-id", id),
        };
        json!({key: value, "ip-address": scope.at(*number)})
    };
    subnet["reservations"] = scope.reserved.iter().map(reservation).collect();
    if let Some((renew, rebind)) = scope.timers {
        subnet["renew-timer"] = json!(renew);
        subnet["rebind-timer"] = json!(rebind);
    }
    json!({"Dhcp4": {
        "interfaces-config": {"interfaces": [interface], "dhcp-socket-type": "raw"},
        "lease-database": {"type": "memfile", "persist": true, "name": leases, "lfc-interval": 0},
        "subnet4": [subnet],
        // Tests read its log.
        "loggers": [{
            "name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 50,
            "output_options": [{"output": "stdout", "flush": true}],
        }],
    }})
}

fn isc(scope: &Scope) -> String {
    let host = |(at, (client, number)): (usize, &(Reservation, u16))| {
        let client = match client {
            Reservation::Mac(mac) => format!("hardware ethernet {mac}"),
            Reservation::ClientId(id) => format!("option dhcp-client-identifier {id}"),
        };
        format!("host h{at} {{ {client}; fixed-address {}; }}\n", scope.at(*number))
    };
    let hosts: String = scope.reserved.iter().enumerate().map(host).collect();
    let authoritative = if scope.authoritative { "authoritative" } else { "not authoritative" };
    let timers = scope.timers.map_or_else(String::new, |(renew, rebind)| {
        format!("option dhcp-renewal-time {renew};\noption dhcp-rebinding-time {rebind};\n")
    });
    format!(
        "{authoritative};\n\
         ping-check false;\n\
         ddns-update-style none;\n\
         default-lease-time {seconds};\nmin-lease-time {seconds};\nmax-lease-time {seconds};\n\
         # Else it answers a renewal that comes early with what is left of the lease.\n\
         dhcp-cache-threshold 0;\n\
         {timers}\
         subnet {subnet} netmask {netmask} {{\n\
           range {first} {last};\n\
           option routers {router};\n\
           option domain-name-servers {name_server};\n\
         }}\n{hosts}",
        seconds = scope.seconds,
        subnet = scope.at(0),
        netmask = scope.netmask(),
        first = scope.at(scope.range.0),
        last = scope.at(scope.range.1),
        router = scope.at(254),
        name_server = scope.at(253),
    )
}

fn udhcpd(interface: &str, scope: &Scope, leases: &str) -> String {
    // The lines of the two timers are raw options: 58 and 59, four octets each.
    let timers = scope.timers.map_or_else(String::new, |(renew, rebind)| {
        format!("opt 0x3a {renew:08x}\nopt 0x3b {rebind:08x}\n")
    });
    format!(
        "start {first}\nend {last}\ninterface {interface}\nlease_file {leases}\n\
         pidfile {leases}.pid\nmax_leases 254\nauto_time 0\ndecline_time 600\nconflict_time 600\n\
         opt subnet {netmask}\nopt router {router}\nopt dns {name_server}\n\
         opt lease {seconds}\n{timers}",
        first = scope.at(scope.range.0),
        last = scope.at(scope.range.1),
        router = scope.at(254),
        name_server = scope.at(253),
        netmask = scope.netmask(),
        seconds = scope.seconds,
    )
}
