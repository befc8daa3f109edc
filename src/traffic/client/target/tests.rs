use super::*;

/// Base URLs, each with the target and a request's path. Those that are refused: tests/data/refused.txt.
const URLS: &str = "\
http://a.b:30000 | http://a.b:30000 /generate
http://a.b:30000/ | http://a.b:30000 /generate
http://a.b/x/ | http://a.b:80/x /x/generate
http://[::1]:8000 | http://[::1]:8000 /generate
https://a.b/x | https://a.b:443/x /x/generate";

#[test]
fn a_base_url_is_host_port_and_prefix() {
    for line in URLS.lines() {
        let (url, expected) = line.split_once(" | ").unwrap();
        let target = Target::parse(url).unwrap();
        assert_eq!(format!("{target} {}", target.path("/generate")), expected);
    }
    assert_eq!(
        Target::parse("http://[::1]:8000").unwrap().address.host,
        "::1"
    );
}

#[test]
fn a_key_and_values_of_headers_are_masked() {
    let key = bearer("sk-12345").unwrap();
    let other = HeaderValue::from_static("long enough");
    let short = HeaderValue::from_static("a");
    let foreign = HeaderValue::from_str("schlüssel").unwrap();
    let values = [&key, &other, &short, &foreign];
    for (text, shown) in [
        ("a wrong key: sk-12345.", "a wrong key: ***."),
        ("no `Bearer sk-12345`", "no `***`"),
        ("long enough, long enough", "***, ***"),
        ("no schlüssel", "no ***"),
        ("nothing", "nothing"),
    ] {
        assert_eq!(masked(text, values.into_iter()), shown);
    }
    assert!(!format!("{key:?}").contains("12345"));
}
