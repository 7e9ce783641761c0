//! Heads of requests of HTTP/1, of which those are refused that a browser may have been led to
//! send: what is served on loopback, metrics and the page of `forebay status`, is not for other
//! sites.

/// What ends a head.
const END: &[u8] = b"\r\n\r\n";

/// Whether all of a head has come.
pub fn is_whole(request: &[u8]) -> bool {
    request.windows(END.len()).any(|end| end == END)
}

/// What a request asks for, by GET or HEAD.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'r> {
    /// Without what follows a question mark.
    pub path: &'r str,
    /// What follows the first question mark.
    pub query: &'r str,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no request of HTTP/1.
    Malformed,
    /// Its host is another one: a name of another site, which that has let lead here.
    Misdirected,
    /// It is neither a GET nor a HEAD.
    Method,
}

impl Refusal {
    /// Code and words.
    pub fn status(self) -> &'static str {
        match self {
            Refusal::Malformed => "400 Bad Request",
            Refusal::Misdirected => "421 Misdirected Request",
            Refusal::Method => "405 Method Not Allowed",
        }
    }
}

/// Reads the head of a request to a host that `is_known`, or to none.
///
/// # Errors
/// Why it is not answered.
pub fn read(
    request: &[u8],
    is_known: impl Fn(Option<&str>) -> bool,
) -> Result<Request<'_>, Refusal> {
    let text = str::from_utf8(request).map_err(|_| Refusal::Malformed)?;
    let (head, _) = text.split_once("\r\n\r\n").ok_or(Refusal::Malformed)?;
    let mut lines = head.split("\r\n");
    let words: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.0" | "HTTP/1.1"] = words[..] else {
        return Err(Refusal::Malformed);
    };
    let fields = lines.filter_map(|line| line.split_once(':'));
    let hosts = fields.filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let hosts: Vec<_> = hosts.map(|(_, host)| host.trim()).collect();
    if hosts.len() > 1 || !is_known(hosts.first().copied()) {
        return Err(Refusal::Misdirected);
    }
    if !["GET", "HEAD"].contains(&method) {
        return Err(Refusal::Method);
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    Ok(Request { path, query })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: &str) -> Result<(&str, &str), Refusal> {
        let found = read(request.as_bytes(), |host| host == Some("here"))?;
        Ok((found.path, found.query))
    }

    #[test]
    fn only_what_is_asked_of_this_host_is_answered() {
        assert_eq!(asked("GET /a?b=c?d HTTP/1.1\r\nHOST: here\r\n\r\n"), Ok(("/a", "b=c?d")));
        assert_eq!(asked("HEAD / HTTP/1.0\r\nHost: here\r\n\r\n"), Ok(("/", "")));
        for hosts in ["", "Host: evil.example\r\n", "Host:\r\n", "Host: here\r\nhost: here\r\n"] {
            let request = format!("GET / HTTP/1.1\r\n{hosts}\r\n");
            assert_eq!(asked(&request), Err(Refusal::Misdirected), "{hosts:?}");
        }
        assert_eq!(asked("GET / HTTP/1.0\r\nHost: a\r\n\r\n"), Err(Refusal::Misdirected));
        assert_eq!(asked("POST / HTTP/1.1\r\nHost: here\r\n\r\n"), Err(Refusal::Method));
    }

    #[test]
    fn nonsense_is_refused() {
        let nonsense =
            ["", "\0\0", "GET", "GET / HTTP/1.1\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n"];
        for request in nonsense {
            assert_eq!(asked(request), Err(Refusal::Malformed), "{request:?}");
        }
        assert_eq!(read(b"GET /\xff HTTP/1.0\r\n\r\n", |_| true), Err(Refusal::Malformed));
        assert!(is_whole(b"GET / HTTP/1.0\r\n\r\n") && !is_whole(b"GET / HTTP/1.0\r\n\r"));
    }
}
