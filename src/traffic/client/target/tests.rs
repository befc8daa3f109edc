use super::*;

/// Base URLs, each with the target and a request's path, or a part of the error.
const URLS: &str = "\
http://a.b:30000 | http://a.b:30000 /generate
http://a.b:30000/ | http://a.b:30000 /generate
http://a.b/x/ | http://a.b:80/x /x/generate
http://[::1]:8000 | http://[::1]:8000 /generate
https://a.b/x | https://a.b:443/x /x/generate
a:1 | must be like
127.0.0.1:30000 | must be like http://127.0.0.1:30000
ftp://a | must be like
http://a:0 | with a port from 1 to 65535
http://a:99999 | with a port from 1 to 65535
http://u@a | without user
http://a?x=1 | without user and query
http:// | must be like
 | must be like";

#[test]
fn a_base_url_is_host_port_and_prefix() {
    for line in URLS.lines() {
        let (url, expected) = line.split_once(" | ").unwrap();
        let result = Target::parse(url).map_or_else(
            |error| error,
            |target| format!("{target} {}", target.path("/generate")),
        );
        assert!(result.contains(expected), "{url}: {result}");
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
