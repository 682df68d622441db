//! Two transactions of the rules, written by hand: a new sandbox is let out, and forgotten.
//!
//! They say what [`super::rules`] says of a sandbox with `nft`, which takes a third of a launch's
//! time. They are for what most sandboxes have, a way out that is open or shut as a whole; whoever
//! has a list of rules, and whatever goes wrong here, is `nft`'s. Numbers are in the network's byte
//! order.

use std::io;

use outlive_api::launch::{Link, Verdict};
use rustix::net::netlink::NETFILTER;

use super::{
    doors::Doors,
    rules::Admitted,
    text::{MARK, TABLE, in_family},
    wire::{ACKNOWLEDGE, APPEND, CREATE, Kernel, attr, c, message, nest},
};

const BATCH_BEGIN: u16 = 0x10; // NFNL_MSG_BATCH_BEGIN
const BATCH_END: u16 = 0x11;
/// `NFNL_SUBSYS_NFTABLES`, the upper half of the types of its messages.
const NF_TABLES: u8 = 10;
const NEW_CHAIN: u8 = 3; // NFT_MSG_*
const DELETE_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const DELETE_RULE: u8 = 8;
const NEW_ELEMENT: u8 = 12;
const DELETE_ELEMENT: u8 = 14;

const INET: u8 = 1; // NFPROTO_INET
const TABLE_NAME: u16 = 1; // NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_TABLE
const CHAIN_NAME: u16 = 3; // NFTA_CHAIN_NAME
const RULE_CHAIN: u16 = 2; // NFTA_RULE_CHAIN
const RULE_EXPRESSIONS: u16 = 4; // NFTA_RULE_EXPRESSIONS
const SET_NAME: u16 = 2; // NFTA_SET_ELEM_LIST_SET
const SET_ELEMENTS: u16 = 3; // NFTA_SET_ELEM_LIST_ELEMENTS
const ONE_OF_LIST: u16 = 1; // NFTA_LIST_ELEM
const EXPRESSION_NAME: u16 = 1; // NFTA_EXPR_NAME
const EXPRESSION_DATA: u16 = 2; // NFTA_EXPR_DATA
const ELEMENT_KEY: u16 = 1; // NFTA_SET_ELEM_KEY
const ELEMENT_DATA: u16 = 2; // NFTA_SET_ELEM_DATA
const VALUE: u16 = 1; // NFTA_DATA_VALUE
const VERDICT: u16 = 2; // NFTA_DATA_VERDICT
const VERDICT_CODE: u16 = 1; // NFTA_VERDICT_CODE
const VERDICT_CHAIN: u16 = 2; // NFTA_VERDICT_CHAIN
const IMMEDIATE_REGISTER: u16 = 1; // NFTA_IMMEDIATE_DREG
const IMMEDIATE_DATA: u16 = 2; // NFTA_IMMEDIATE_DATA
const REJECT_TYPE: u16 = 1; // NFTA_REJECT_TYPE
const REJECT_CODE: u16 = 2; // NFTA_REJECT_ICMP_CODE

const VERDICT_REGISTER: u32 = 0; // NFT_REG_VERDICT
const ACCEPT: i32 = 1; // NF_ACCEPT
const JUMP: i32 = -3; // NFT_JUMP
const ICMPX: u32 = 2; // NFT_REJECT_ICMPX_UNREACH
const ADMIN_PROHIBITED: u8 = 3; // NFT_REJECT_ICMPX_ADMIN_PROHIBITED

/// Bytes of a device's name in a set.
const DEVICE_BYTES: usize = 16;

/// Lets a sandbox out whose device no rule knows, if what all sandboxes share has this mark.
pub(super) fn admit(
    mark: &str,
    doors: &Doors,
    sandbox: &Admitted,
    link: Link,
    verdict: Verdict,
) -> io::Result<()> {
    let mut batch = Batch::begin(mark);
    batch.rule_doors(doors);
    batch.acquaint(sandbox);
    match link {
        Link::Cut => batch.element(NEW_ELEMENT, "cut", &device_key(&sandbox.device), None),
        Link::Open => {} // As it is without a rule.
    }
    batch.empty(&sandbox.device);
    batch.rule(&sandbox.device, verdict);
    batch.carry_out()
}

/// Forgets a sandbox, whatever of it is there, if what all sandboxes share has this mark.
pub(super) fn forget(mark: &str, doors: &Doors, sandbox: &Admitted) -> io::Result<()> {
    let mut batch = Batch::begin(mark);
    batch.rule_doors(doors);
    // What is added is there for sure and can be removed.
    batch.acquaint(sandbox);
    let key = device_key(&sandbox.device);
    batch.element(NEW_ELEMENT, "cut", &key, None);
    batch.element(DELETE_ELEMENT, "cut", &key, None);
    batch.element(DELETE_ELEMENT, "egress", &key, None);
    batch.element(DELETE_ELEMENT, "pairs", &pair_key(sandbox), None);
    batch.element(DELETE_ELEMENT, "addresses", &sandbox.address.octets(), None);
    batch.empty(&sandbox.device);
    let chain = [table(TABLE), attr(CHAIN_NAME, &c(&sandbox.device))];
    batch.add(DELETE_CHAIN, 0, &chain);
    batch.carry_out()
}

/// A transaction that is being written.
#[derive(Default)]
struct Batch {
    requests: Vec<u8>,
    /// The sequence number of what was written last.
    last: u32,
}

impl Batch {
    /// One that fails where what all sandboxes share has another mark.
    fn begin(mark: &str) -> Self {
        let mut batch = Self::default();
        batch.edge(BATCH_BEGIN);
        // Empties what is empty.
        batch.add(DELETE_RULE, 0, &[table(MARK), attr(RULE_CHAIN, &c(mark))]);
        batch
    }

    fn carry_out(mut self) -> io::Result<()> {
        let last = self.last;
        self.edge(BATCH_END);
        Kernel::open(Some(NETFILTER))?.ask(&self.requests, last)
    }

    /// Its frame.
    fn edge(&mut self, kind: u16) {
        self.last += 1;
        let body = [0, 0, 0, NF_TABLES];
        message(&mut self.requests, kind, 0, self.last, &body);
    }

    fn add(&mut self, kind: u8, flags: u16, attributes: &[Vec<u8>]) {
        self.last += 1;
        let kind = u16::from_be_bytes([NF_TABLES, kind]);
        // nfgenmsg: family, version, resource.
        let body = [&[INET, 0, 0, 0], attributes.concat().as_slice()].concat();
        let flags = ACKNOWLEDGE | flags;
        message(&mut self.requests, kind, flags, self.last, &body);
    }

    /// Has the set say what the doors are.
    fn rule_doors(&mut self, doors: &Doors) {
        for door in doors.names() {
            self.element(NEW_ELEMENT, "doors", &device_key(door), None);
        }
        for door in doors.dropped() {
            // What is added is there for sure and can be removed.
            self.element(NEW_ELEMENT, "doors", &device_key(door), None);
            self.element(DELETE_ELEMENT, "doors", &device_key(door), None);
        }
    }

    /// Has the sets know a sandbox, and a chain be its own.
    fn acquaint(&mut self, sandbox: &Admitted) {
        let Admitted { device, address } = sandbox;
        let chain = [table(TABLE), attr(CHAIN_NAME, &c(device))];
        self.add(NEW_CHAIN, CREATE, &chain);
        self.element(NEW_ELEMENT, "pairs", &pair_key(sandbox), None);
        self.element(NEW_ELEMENT, "addresses", &address.octets(), None);
        self.element(NEW_ELEMENT, "egress", &device_key(device), Some(device));
    }

    /// Adds an element, which leads to a chain where the set is a map, or removes it.
    fn element(&mut self, kind: u8, set: &str, key: &[u8], leads_to: Option<&str>) {
        let mut element = nest(ELEMENT_KEY, &[attr(VALUE, key)]);
        if let Some(chain) = leads_to {
            let jump = attr(VERDICT_CODE, &JUMP.to_be_bytes());
            let to = nest(VERDICT, &[jump, attr(VERDICT_CHAIN, &c(chain))]);
            element.extend(nest(ELEMENT_DATA, &[to]));
        }
        let elements = nest(SET_ELEMENTS, &[nest(ONE_OF_LIST, &[element])]);
        let attributes = [table(TABLE), attr(SET_NAME, &c(set)), elements];
        let flags = if kind == NEW_ELEMENT { CREATE } else { 0 };
        self.add(kind, flags, &attributes);
    }

    /// Removes the rules of a chain.
    fn empty(&mut self, chain: &str) {
        let chain = [table(TABLE), attr(RULE_CHAIN, &c(chain))];
        self.add(DELETE_RULE, 0, &chain);
    }

    /// Adds a rule for everything that comes to a chain.
    fn rule(&mut self, chain: &str, verdict: Verdict) {
        let expressions = nest(RULE_EXPRESSIONS, &[carried_out(verdict)]);
        let rule = [table(TABLE), attr(RULE_CHAIN, &c(chain)), expressions];
        self.add(NEW_RULE, CREATE | APPEND, &rule);
    }
}

/// A device as sets know it.
fn device_key(device: &str) -> Vec<u8> {
    let mut key = device.as_bytes().to_vec();
    key.resize(DEVICE_BYTES, 0);
    key
}

/// A device with its address.
fn pair_key(Admitted { device, address }: &Admitted) -> Vec<u8> {
    [device_key(device).as_slice(), &address.octets()].concat()
}

fn table(table: &str) -> Vec<u8> {
    attr(TABLE_NAME, &c(in_family(table)))
}

/// What a rule for everything does.
fn carried_out(verdict: Verdict) -> Vec<u8> {
    let (name, data) = match verdict {
        Verdict::Allow => {
            let code = attr(VERDICT_CODE, &ACCEPT.to_be_bytes());
            let register = attr(IMMEDIATE_REGISTER, &VERDICT_REGISTER.to_be_bytes());
            let data = nest(IMMEDIATE_DATA, &[nest(VERDICT, &[code])]);
            ("immediate", nest(EXPRESSION_DATA, &[register, data]))
        }
        Verdict::Deny => {
            let kind = attr(REJECT_TYPE, &ICMPX.to_be_bytes());
            let code = attr(REJECT_CODE, &[ADMIN_PROHIBITED]);
            ("reject", nest(EXPRESSION_DATA, &[kind, code]))
        }
    };
    nest(ONE_OF_LIST, &[attr(EXPRESSION_NAME, &c(name)), data])
}
