//! Patterns of names: `*` stands for anything, also nothing, `?` for one byte.

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob(String);

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }

    /// Whether it is about paths: it has a slash.
    pub(crate) fn is_of_paths(&self) -> bool {
        self.0.contains('/')
    }

    /// Whether the whole of `text` matches. It takes at most as many steps as both lengths multiplied.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut p, mut t) = (0, 0);
        // The last star, and where the text goes on after what it stands for.
        let mut star = None;
        while t < text.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    star = Some((p, t));
                    p += 1;
                }
                Some(&byte) if byte == b'?' || byte == text[t] => {
                    p += 1;
                    t += 1;
                }
                _ => {
                    let Some((at, from)) = star else {
                        return false;
                    };
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Glob::new(pattern).matches(text)
    }

    #[test]
    fn stars_and_question_marks_stand_for_what_they_say() {
        assert!(matches("", "") && !matches("", "a"));
        assert!(matches("*", "") && matches("*", "/a/b"));
        assert!(matches("/usr/bin/redis-*", "/usr/bin/redis-server"));
        assert!(!matches("/usr/bin/redis-*", "/opt/usr/bin/redis-server"));
        assert!(matches("*b*c", "abcbc") && !matches("*b*c", "abcb"));
        assert!(matches("a?c", "abc") && !matches("a?c", "ac"));
        assert!(!matches("nginx", "nginx2") && !matches("nginx", "ngin"));
    }

    /// The definition, which takes as long as it takes.
    fn by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|n| by_definition(rest, &text[n..])),
            [b'?', rest @ ..] => !text.is_empty() && by_definition(rest, &text[1..]),
            [byte, rest @ ..] => text.first() == Some(byte) && by_definition(rest, &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn it_matches_what_its_definition_does(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            let expected = by_definition(pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(&pattern, &text), expected);
        }
    }
}
