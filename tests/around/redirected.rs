//! Where a connection that the firewall has redirected wanted to go. In a network of the test's own, with `nft(8)`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::{Command, Stdio};

use ringmain::Runtime;
use ringmain::net::{ListenOptions, TcpListener, TcpStream};

use crate::patiently;

const CHILD: &str = "RINGMAIN_TEST_NETWORK";

/// Run this test again in a network of its own, in which `script` has been run by a shell; say so where that cannot be.
fn in_a_network_of_its_own(name: &str, script: &str) {
    // Machines that decide about a change need not have the tool, so this is no failure there either.
    let nft = Command::new("nft").arg("--version").stdout(Stdio::null()).status();
    if !nft.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {name}: there is no nft(8) here");
        return;
    }
    let may = Command::new("unshare").args(["--net", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED {name}: this user may not make a network (`unshare --net`)");
        return;
    }
    let script = format!("set -e; ip link set lo up; {script}; exec \"$0\" \"$@\"");
    let output = Command::new("unshare")
        .args(["--net", "sh", "-c", &script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
}

/// What a server that connections to `wanted` are brought to says of them.
async fn destination(listener: &TcpListener, wanted: SocketAddr) -> (SocketAddr, SocketAddr) {
    let client = patiently("the connect", TcpStream::connect(wanted)).await.expect("it is redirected");
    let server = listener.accept().await.unwrap();
    assert_eq!(client.peer_addr().unwrap(), wanted, "the client sees nothing of it");
    (server.original_destination().expect("it was redirected"), server.local_addr().unwrap())
}

#[test]
fn a_redirected_connection_knows_where_it_wanted_to_go() {
    if std::env::var_os(CHILD).is_none() {
        let rules = "nft 'table inet nat { chain output { \
                     type nat hook output priority -100; tcp dport 81 redirect to :8081; }; }'";
        return in_a_network_of_its_own("redirected::a_redirected_connection_knows_where_it_wanted_to_go", rules);
    }
    Runtime::new().unwrap().block_on(async {
        for here in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let listener = TcpListener::bind((here, 8081).into()).unwrap();
            let (original, local) = destination(&listener, (here, 81).into()).await;
            assert_eq!((original, local), ((here, 81).into(), (here, 8081).into()));
        }
        // An IPv4 connection of a listener for both.
        let both = TcpListener::bind_with((Ipv6Addr::UNSPECIFIED, 8081).into(), &ListenOptions::new().only_v6(false));
        let (original, local) = destination(&both.unwrap(), (Ipv4Addr::LOCALHOST, 81).into()).await;
        assert_eq!(original, (Ipv4Addr::LOCALHOST, 81).into());
        assert!(local.is_ipv6());
    });
}

#[test]
fn a_connection_that_tproxy_brings_has_its_destination_as_its_own_address() {
    if std::env::var_os(CHILD).is_none() {
        let rules = "ip rule add fwmark 1 lookup 100; ip route add local default dev lo table 100; \
                     ip route add 192.0.2.0/24 dev lo; \
                     nft 'table ip mangle { \
                     chain output { type route hook output priority -150; ip daddr 192.0.2.7 meta mark set 1; }; \
                     chain prerouting { type filter hook prerouting priority -150; \
                     ip daddr 192.0.2.7 tcp dport 82 tproxy to 127.0.0.1:8082 meta mark set 1; }; }'";
        let name = "redirected::a_connection_that_tproxy_brings_has_its_destination_as_its_own_address";
        return in_a_network_of_its_own(name, rules);
    }
    Runtime::new().unwrap().block_on(async {
        let wanted = SocketAddr::from(([192, 0, 2, 7], 82));
        let options = ListenOptions::new().transparent(true);
        let listener = TcpListener::bind_with(([127, 0, 0, 1], 8082).into(), &options).unwrap();
        let client = patiently("the connect", TcpStream::connect(wanted)).await.expect("it is brought here");
        let server = listener.accept().await.unwrap();
        assert_eq!((server.local_addr().unwrap(), client.peer_addr().unwrap()), (wanted, wanted));
    });
}
