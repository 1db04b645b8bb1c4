//! Numbers in five characters.

/// With three digits that count, and what it is to be multiplied by.
pub(super) fn short(number: f64) -> String {
    let mut number = number;
    for unit in ["", "k", "M", "G", "T"] {
        let digits = match unit {
            // Whole things that happen, but seldom.
            "" => usize::from(number > 0.0 && number < 9.95),
            _ if number < 9.995 => 2,
            _ => usize::from(number < 99.95),
        };
        if number < 999.5 {
            return format!("{number:.digits$}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}P")
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn numbers_have_five_characters_at_most() {
        let shown = [
            (0.0, "0"),
            (0.25, "0.2"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (9_996.0, "10.0k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (2.5e9, "2.50G"),
            (7e12, "7.00T"),
            (8e15, "8P"),
        ];
        for (number, text) in shown {
            assert_eq!(short(number), text, "{number}");
        }
    }
}
