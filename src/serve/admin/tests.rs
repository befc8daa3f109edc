//! Who may ask for what needs the token.

use super::*;

#[test]
fn a_name_is_ours_if_nobody_else_can_give_it_to_us() {
    let names = ["gpu1.Example".to_owned()];
    let is_ours = |host: &str| {
        let host = HeaderValue::from_str(host).unwrap();
        is_our_name(&HeaderMap::from_iter([(HOST, host)]), &names)
    };
    for ours in [
        "localhost",
        "LocalHost:8801",
        "localhost.",
        "127.0.0.1:8801",
        "10.0.0.7",
        "[::1]:8801",
        "[fe80::1]",
        "GPU1.example:80",
    ] {
        assert!(is_ours(ours), "{ours}");
    }
    for other in [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "gpu1",
        "evil.example:127",
        "a b",
    ] {
        assert!(!is_ours(other), "{other}");
    }
    assert!(!is_our_name(&HeaderMap::new(), &names));
}

#[test]
fn the_token_is_a_bearers_or_any_users_password() {
    let token = Secret::from("to:ken");
    let is_allowed = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        is_allowed(&headers, &token)
    };
    let basic = |pair: &str| format!("Basic {}", BASE64_STANDARD.encode(pair));
    assert!(is_allowed("Bearer to:ken") && is_allowed("bearer to:ken"));
    assert!(is_allowed(&basic("anybody:to:ken")) && is_allowed(&basic(":to:ken")));
    for wrong in [
        "to:ken",
        "Bearer",
        "Bearer  to:ken",
        "Basic to:ken",
        "Digest to:ken",
        "",
    ] {
        assert!(!is_allowed(wrong), "{wrong}");
    }
    for wrong in ["to:ken", "ken", "a:to:kenx", "a:to:ke", "a:", ""] {
        assert!(!is_allowed(&basic(wrong)), "{wrong}");
    }
}
