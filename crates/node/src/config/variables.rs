//! `~` and variables of the environment in the paths of a configuration.

/// The path that `text` means: `~` at its beginning, `$NAME` and `${NAME}` have the values that
/// `variable` gives; `$$` is a dollar.
///
/// # Errors
/// What is wrong, and what to do.
pub fn expand(text: &str, variable: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let value = |name: &str| {
        let set = variable(name).filter(|value| !value.is_empty());
        set.ok_or_else(|| format!("{name} is not set; set it, or write $$ for a dollar"))
    };
    let mut rest = text;
    let mut whole = String::new();
    if rest == "~" || rest.starts_with("~/") {
        whole = value("HOME")?;
        rest = &rest[1..];
    } else if let Some(other) = rest.strip_prefix('~') {
        let user = other.split('/').next().unwrap_or_default();
        return Err(format!(
            "~{user} is not put in, only ~ alone is; write that user's directory, or ./~{user} for a name that \
             begins so"
        ));
    }
    while let Some((before, behind)) = rest.split_once('$') {
        whole.push_str(before);
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let (name, behind) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or("a { has no }; close it")?,
            None => behind.split_at(behind.find(|c| !is_of_name(c)).unwrap_or(behind.len())),
        };
        rest = match behind.strip_prefix('$') {
            Some(behind) if name.is_empty() => {
                whole.push('$');
                behind
            }
            _ if name.is_empty() || !name.chars().all(is_of_name) => {
                return Err("a $ has no name behind it; write $$ for a dollar".to_owned());
            }
            _ => {
                whole.push_str(&value(name)?);
                behind
            }
        };
    }
    whole.push_str(rest);
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str) -> Option<String> {
        let known = [("HOME", "/home/me"), ("USER", "me"), ("SLURM_JOB_ID", "17"), ("EMPTY", "")];
        known.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn what_is_named_is_put_in() {
        for (text, path) in [
            ("/scratch", "/scratch"),
            ("~", "/home/me"),
            ("~/data", "/home/me/data"),
            ("a~b/~", "a~b/~"),
            ("./~b", "./~b"),
            ("/scratch/$USER/$SLURM_JOB_ID", "/scratch/me/17"),
            ("/s/${USER}x/job-$SLURM_JOB_ID.d", "/s/mex/job-17.d"),
            ("/a$$b", "/a$b"),
            ("$$USER$$", "$USER$"),
        ] {
            assert_eq!(expand(text, variable).as_deref(), Ok(path), "{text}");
        }
        for (text, problem) in [
            ("/s/$NONE", "NONE is not set; set it, or write $$ for a dollar"),
            ("/s/$EMPTY", "EMPTY is not set; set it, or write $$ for a dollar"),
            ("/s/${USER", "a { has no }; close it"),
            ("/s/$", "a $ has no name behind it; write $$ for a dollar"),
            ("/s/${}", "a $ has no name behind it; write $$ for a dollar"),
            (
                "~bob/data",
                "~bob is not put in, only ~ alone is; write that user's directory, or ./~bob for a name that \
                 begins so",
            ),
            (
                "~$USER",
                "~$USER is not put in, only ~ alone is; write that user's directory, or ./~$USER for a name \
                 that begins so",
            ),
            ("/s/${A-B}", "a $ has no name behind it; write $$ for a dollar"),
        ] {
            assert_eq!(expand(text, variable), Err(problem.to_owned()), "{text}");
        }
    }
}
