//! Requests to the page, and which of them are refused.

use forebay_node::http::{self, Refusal};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// What a request has to show.
pub struct Door {
    /// Where the page is served.
    pub port: u16,
    /// What only those know that were given the address of the page.
    pub token: String,
}

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    Page,
    Status,
    /// An absolute path.
    Explain(PathBuf),
}

/// An answer, without the part of its head that all have.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// Code and words.
    pub status: &'static str,
    /// Further lines of the head.
    head: String,
    content: String,
}

impl Answer {
    fn text(status: &'static str, content: &str) -> Answer {
        let head = "Content-Type: text/plain; charset=utf-8\r\n".to_owned();
        Answer { status, head, content: content.to_owned() }
    }

    fn refusal(why: Refusal) -> Answer {
        let content = match why {
            Refusal::Malformed => "this is no request of HTTP/1\n",
            Refusal::Misdirected => "this host is not served here\n",
            Refusal::Method => "nothing is changed from here\n",
        };
        let mut answer = Answer::text(why.status(), content);
        if why == Refusal::Method {
            answer.head.push_str("Allow: GET, HEAD\r\n");
        }
        answer
    }

    /// The page, whose styles and scripts are those with this number and no others.
    pub fn page(page: &str, nonce: &str) -> Answer {
        let head = format!(
            "Content-Type: text/html; charset=utf-8\r\nContent-Security-Policy: default-src 'none'; \
             script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
        );
        Answer { status: "200 OK", head, content: page.replace("NONCE", nonce) }
    }

    pub fn json(content: String) -> Answer {
        let head = "Content-Type: application/json\r\n".to_owned();
        Answer { status: "200 OK", head, content }
    }

    /// That what was asked for cannot be said now, and why.
    pub fn failure(why: String) -> Answer {
        let answer = Answer::json(json!({ "error": why }).to_string());
        Answer { status: "404 Not Found", ..answer }
    }

    /// As it goes to the browser; for HEAD without what it tells of.
    pub fn bytes(&self, is_head: bool) -> Vec<u8> {
        let Answer { status, head, content } = self;
        let mut text = format!(
            "HTTP/1.1 {status}\r\n{head}Content-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nConnection: close\r\n\r\n",
            content.len()
        );
        if !is_head {
            text.push_str(content);
        }
        text.into_bytes()
    }
}

/// What a request asks for.
///
/// # Errors
/// The answer that refuses it.
pub fn read(request: &[u8], door: &Door) -> Result<Target, Answer> {
    let known = ["127.0.0.1", "localhost"].map(|host| format!("{host}:{}", door.port));
    let asked = http::read(request, |host| known.iter().any(|known| Some(&**known) == host));
    let http::Request { path, query } = asked.map_err(Answer::refusal)?;
    let value = |wanted: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(name, _)| *name == wanted).map(|(_, value)| value).next()
    };
    if !is_same(value("token").unwrap_or_default(), &door.token) {
        let why = "take the whole address that was printed\n";
        return Err(Answer::text("403 Forbidden", why));
    }
    match path {
        "/" => Ok(Target::Page),
        "/api/status" => Ok(Target::Status),
        "/api/explain" => {
            let path = value("path").and_then(decoded).filter(|path| path.is_absolute());
            let why = "give path=, an absolute path\n";
            path.map(Target::Explain).ok_or_else(|| Answer::text("400 Bad Request", why))
        }
        _ => Err(Answer::text("404 Not Found", "the page is at /\n")),
    }
}

/// Whether both are the same, in a time that does not tell how much of them is.
fn is_same(given: &str, token: &str) -> bool {
    let pairs = given.bytes().zip(token.bytes());
    let differing = pairs.fold(0, |differing, (a, b)| std::hint::black_box(differing | (a ^ b)));
    given.len() == token.len() && differing == 0
}

/// A path whose bytes may be %XX.
fn decoded(text: &str) -> Option<PathBuf> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match first {
            b'%' => {
                let digits = str::from_utf8(after.get(..2)?).ok()?;
                let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                path.push(is_hex.then(|| u8::from_str_radix(digits, 16).ok())??);
                &after[2..]
            }
            _ => {
                path.push(*first);
                after
            }
        };
    }
    (!path.contains(&0)).then(|| PathBuf::from(OsString::from_vec(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn ask(first: &str, host: &str) -> Result<Target, &'static str> {
        let door = Door { port: 4711, token: TOKEN.to_owned() };
        let request = format!("{first}\r\nHost: {host}\r\nAccept: */*\r\n\r\n");
        read(request.as_bytes(), &door).map_err(|answer| answer.status)
    }

    #[test]
    fn only_what_shows_the_token_is_answered() {
        let get = |target: &str| ask(&format!("GET {target} HTTP/1.1"), "127.0.0.1:4711");
        assert_eq!(get(&format!("/?token={TOKEN}")), Ok(Target::Page));
        assert_eq!(get(&format!("/api/status?token={TOKEN}")), Ok(Target::Status));
        assert_eq!(get(&format!("/other?token={TOKEN}")), Err("404 Not Found"));
        let mut last_wrong = TOKEN.to_owned();
        last_wrong.replace_range(31.., "0");
        for wrong in ["", &TOKEN[1..], &TOKEN[..31], &format!("{TOKEN}0"), &last_wrong] {
            for path in ["/", "/api/status", "/api/explain", "/other"] {
                let target = format!("{path}?path=/a&token={wrong}");
                assert_eq!(get(&target), Err("403 Forbidden"), "{target}");
            }
        }
        assert_eq!(get("/"), Err("403 Forbidden"));
    }

    #[test]
    fn other_hosts_and_methods_are_refused() {
        let target = format!("/?token={TOKEN}");
        let get = format!("GET {target} HTTP/1.1");
        assert_eq!(ask(&get, "localhost:4711"), Ok(Target::Page));
        for host in ["", "127.0.0.1", "127.0.0.1:4712", "evil.example:4711", "localhost.:4711"] {
            assert_eq!(ask(&get, host), Err("421 Misdirected Request"), "{host}");
        }
        let twice = "127.0.0.1:4711\r\nHost: 127.0.0.1:4711";
        assert_eq!(ask(&get, twice), Err("421 Misdirected Request"));
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"] {
            let first = format!("{method} {target} HTTP/1.1");
            assert_eq!(ask(&first, "127.0.0.1:4711"), Err("405 Method Not Allowed"), "{method}");
        }
        for first in ["", "GET", &format!("GET {target}"), &format!("GET {target} HTTP/2")] {
            assert_eq!(ask(first, "127.0.0.1:4711"), Err("400 Bad Request"), "{first:?}");
        }
    }

    #[test]
    fn paths_are_absolute_and_decoded() {
        let explain = |path: &str| {
            let first = format!("GET /api/explain?token={TOKEN}&path={path} HTTP/1.1");
            ask(&first, "127.0.0.1:4711")
        };
        let found = |path: &str| Ok(Target::Explain(PathBuf::from(path)));
        assert_eq!(explain("%2Fa%20b%26%25/%C3%BC+"), found("/a b&%/ü+"));
        for wrong in ["", "a", "%2", "/%zz", "/%+1", "/%00"] {
            assert_eq!(explain(wrong), Err("400 Bad Request"), "{wrong}");
        }
    }
}
