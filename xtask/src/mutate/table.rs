//! The faults.

/// A fault of the path machine.
pub(super) struct Mutation {
    /// Below the directory of the machine.
    pub(super) file: &'static str,
    /// Stands there exactly once.
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// What is wrong then.
    pub(super) fault: &'static str,
}

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        file: "switch.rs",
        from: "word(&self.own.output.switch_at, written + 1)",
        to: "word(&self.own.output.switch_at, written + 2)",
        fault: "the switch names an offset one byte too far",
    },
    Mutation {
        file: "switch.rs",
        from: "self.switch_offset() == Some(self.taken())",
        to: "self.switch_offset().is_some()",
        fault: "the receiver follows a switch before it has taken what comes before",
    },
    Mutation {
        file: "leave.rs",
        from: "publish::word(&self.own.output.back_at, written + 1);",
        to: "",
        fault: "a sender leaves its ring without a word of where TCP goes on",
    },
    Mutation {
        file: "withdrawal.rs",
        from: "let receives = receiving.token.is_taken();",
        to: "let receives = false;",
        fault: "a withdrawal does not look at the receiver's token",
    },
    Mutation {
        file: "withdrawal.rs",
        from: "heavy();",
        to: "",
        fault: "a withdrawal has no barrier before it looks at the receiver's token",
    },
    Mutation {
        file: "withdrawal.rs",
        from: "let may = reads && !receives && !deaf;",
        to: "let may = reads && !receives;",
        fault: "a withdrawal sends again to a peer that has shut down both halves",
    },
    Mutation {
        file: "withdrawal.rs",
        from: "publish::word(&self.own.output.back_at, written + 1);\n        step();\n        self.withdrawn();",
        to: "self.withdrawn();\n        step();\n        publish::word(&self.own.output.back_at, written + 1);",
        fault: "a withdrawal is said before its offset",
    },
    Mutation {
        file: "withdrawal.rs",
        from: "Some((Unread::noted(recall), sent))",
        to: "Some((Unread::noted(recall), sent.saturating_sub(1)))",
        fault: "the first withdrawn byte is sent twice",
    },
    Mutation {
        file: "recall.rs",
        from: "(self.is_in_operation()\n                || ",
        to: "(",
        fault: "the receiver sends to itself although the sender is in an operation",
    },
    Mutation {
        file: "recall.rs",
        from: "it sees, with its token, that it is recalled.\n        heavy();",
        to: "",
        fault: "a recall has no barrier before it looks at the sender's token",
    },
    Mutation {
        file: "recall.rs",
        from: "publish::half(&self.own.recall.stage, Recall::DONE);",
        to: "",
        fault: "a receiver that has sent to itself forgets to say so",
    },
    Mutation {
        file: "recall.rs",
        from: " != 0 && at_end())",
        to: " != 0)",
        fault: "the receiver goes on by TCP before it has read the ring of a sender that has left to its end",
    },
    Mutation {
        file: "recall.rs",
        from: "let answers = self.is_in_operation() || !self.is_unanswered();",
        to: "let answers = !self.is_unanswered();",
        fault: "a recall is taken back while the sender answers it",
    },
    Mutation {
        file: "recall.rs",
        from: "&& !self.is_in_operation()\n            && self.is_unanswered()",
        to: "&& self.is_unanswered()\n            && !self.is_in_operation()",
        fault: "an end is believed by an answer that was looked at before the token",
    },
    Mutation {
        file: "recall.rs",
        from: "let sends = self.own.sending.in_kernel.load(Ordering::Acquire) > 0;\n        let written = written();",
        to: "let written = written();\n        let sends = self.own.sending.in_kernel.load(Ordering::Acquire) > 0;",
        fault: "an answer asks what TCP has before it asks whether another thread still sends",
    },
    Mutation {
        file: "life.rs",
        from: "&& self.is_bringing().is_none()",
        to: "",
        fault: "the next life begins while TCP still brings what lay in the ring",
    },
    Mutation {
        file: "death.rs",
        from: "if withdraws => self.withdrawn(),",
        to: "if withdraws => {}",
        fault: "a withdrawal is not finished after a death",
    },
    Mutation {
        file: "record.rs",
        from: "let all = read.saturating_sub(recall.resumed_from.load(Ordering::Relaxed));",
        to: "let all = read;",
        fault: "the receiver of a record drops also what was read before it",
    },
];
