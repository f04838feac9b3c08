//! The public interface, as `public_interface.txt` has it.
//!
//! The list comes from the source and not from rustdoc, so every toolchain gives the same one. It contains the public items that are
//! reachable from the crate root, with all features.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
};

use syn::{Item, Visibility, parse::Parser, visit_mut::VisitMut};

use crate::tidy::{ModulePath, Modules, is_test, module_of, source};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/public_interface.txt");
const UPDATE: &str = "UPDATE_PUBLIC_INTERFACE";

/// The largest numbers of public names at the crate root, of further names in modules, and of constructors of `RedisBackend`.
const MAX_ROOT_NAMES: usize = 33;
const MAX_NAMES: usize = 108;
const MAX_CONSTRUCTORS: usize = 4;

#[test]
fn public_interface_is_written_down() {
    let found = Interface::new(&source()).text();
    if env::var_os(UPDATE).is_some() {
        fs::write(FILE, &found).unwrap();
    }
    let written = fs::read_to_string(FILE).unwrap_or_default();
    let lines = |text: &str, other: &str, sign: char| {
        let other: BTreeSet<&str> = other.lines().collect();
        let lines = text.lines().filter(|line| !other.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    assert!(
        found == written,
        "the public interface is not as in tests/public_interface.txt:\n{}{}\
         If the change is intended, update the file with `{UPDATE}=1 tests/run public_interface`.",
        lines(&written, &found, '-'),
        lines(&found, &written, '+'),
    );
}

#[test]
fn public_interface_has_few_names() {
    let interface = Interface::new(&source());
    let (root, modules): (Vec<_>, Vec<_>) =
        interface.names.iter().partition(|((module, _), _)| module.is_empty());
    // A name in a module that the root has too counts once.
    let others =
        modules.iter().filter(|(_, definition)| root.iter().all(|(_, known)| known != definition)).count();
    let root = root.len();
    println!("public names: {root} at the root, {others} more in modules");
    assert!((20..=MAX_ROOT_NAMES).contains(&root), "{root} names at the root, at most {MAX_ROOT_NAMES}");
    assert!((50..=MAX_NAMES).contains(&others), "{others} names in modules, at most {MAX_NAMES}");
}

#[test]
fn redis_backend_has_few_constructors() {
    let constructors = Interface::new(&source()).constructors("RedisBackend");
    println!("{} constructors of RedisBackend", constructors.len());
    assert!((1..=MAX_CONSTRUCTORS).contains(&constructors.len()), "{constructors:?}");
}

#[test]
fn interface_contains_reachable_items() {
    let sources = [
        ("lib.rs", "mod hidden; pub mod a; pub use crate::hidden::{Seen as Shown, f}; pub use crate::a::A;"),
        (
            "hidden.rs",
            "#[derive(Debug)] pub struct Seen { pub a: u8, b: u8 } pub struct Unseen; pub fn f() { g() } \
             impl Seen { pub fn new() -> Self { g() } fn b(&self) {} } impl Clone for Seen { fn clone(&self) -> Self { *self } } \
             impl Unseen { pub fn new() {} } trait Private {} impl Private for Seen {} impl From<Seen> for String {}",
        ),
        (
            "a/mod.rs",
            "mod b; pub(crate) use b::C; pub use b::A; #[cfg(test)] mod tests { pub struct T; } \
             impl P { pub fn b<T>(self) where T: Copy {} } impl P { pub fn a(&self) {} } wrap! { /// Doc \n pub struct P(pub u8, u8); }",
        ),
        ("a/b.rs", "pub enum A { B(u8) } pub struct C; pub trait D {}"),
    ];
    let sources = sources.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect();
    let interface = Interface::new(&sources);
    let expected = "\
mod crate

pub use a::A;

#[derive(Debug)]
pub struct Shown {
    pub a: u8,
    // private fields
}
impl Clone for Shown;
impl From<Shown> for String;
impl Shown {
    pub fn new() -> Self;
}

pub fn f();

mod crate::a

pub enum A {
    B(u8),
}

pub struct P(pub u8, _);
impl P {
    pub fn a(&self);
    pub fn b<T>(self)
    where
        T: Copy;
}
";
    assert_eq!(interface.text(), expected);
    assert_eq!(interface.constructors("Seen"), ["new"]);
}

/// A public item: the module that defines it, and its name there.
type Definition = (ModulePath, String);

/// The public items that are reachable from the crate root.
struct Interface {
    modules: Modules,
    items: BTreeMap<ModulePath, Vec<Item>>,
    /// The definition of each public name, by its module.
    names: BTreeMap<(ModulePath, String), Definition>,
}

impl Interface {
    fn new(sources: &BTreeMap<String, String>) -> Self {
        let mut items = BTreeMap::new();
        for (file, text) in sources {
            add(&mut items, module_of(file), syn::parse_file(text).unwrap().items);
        }
        let mut interface = Self { modules: Modules::new(sources), items, names: BTreeMap::new() };
        interface.reach(&Vec::new());
        interface
    }

    /// Adds the public names of a module, and of the public modules in it.
    fn reach(&mut self, module: &ModulePath) {
        for item in self.items.get(module).cloned().unwrap_or_default() {
            match &item {
                Item::Use(item) if is_public(&item.vis) => self.export(module, &mut Vec::new(), &item.tree),
                Item::Mod(item) if is_public(&item.vis) => {
                    self.reach(&[module.as_slice(), &[item.ident.to_string()]].concat());
                }
                _ => {
                    if let Some(name) = public_name(&item) {
                        self.names.insert((module.clone(), name.clone()), (module.clone(), name));
                    }
                }
            }
        }
    }

    fn export(&mut self, module: &ModulePath, path: &mut Vec<String>, tree: &syn::UseTree) {
        let (source, name) = match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.export(module, path, &tree.tree);
                path.pop();
                return;
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.export(module, path, tree));
            }
            syn::UseTree::Name(tree) => (tree.ident.to_string(), tree.ident.to_string()),
            syn::UseTree::Rename(tree) => (tree.ident.to_string(), tree.rename.to_string()),
            syn::UseTree::Glob(_) => panic!("a glob hides public names: {}::*", path.join("::")),
        };
        let path = [path.as_slice(), &[source]].concat();
        let definition = self.modules.definition(module, &path, 0);
        let definition = definition.unwrap_or_else(|| panic!("not found: {}", path.join("::")));
        self.names.insert((module.clone(), name), definition);
    }

    /// Returns the text of the file.
    fn text(&self) -> String {
        // An item that has a name in a module is described there, and not at the root.
        let described: BTreeMap<&Definition, _> =
            self.names.iter().map(|(name, definition)| (definition, name)).collect();
        let mut text = String::new();
        let mut last = None;
        for (name, definition) in &self.names {
            if last != Some(&name.0) {
                let separator = if text.is_empty() { "" } else { "\n" };
                text += &format!(
                    "{separator}mod {}\n",
                    [&["crate".to_owned()], name.0.as_slice()].concat().join("::")
                );
                last = Some(&name.0);
            }
            let other = described[definition];
            text += "\n";
            text += &if name == other {
                self.describe(definition, &name.1)
            } else {
                format!(
                    "pub use {};\n",
                    [other.0.as_slice(), std::slice::from_ref(&other.1)].concat().join("::")
                )
            };
        }
        text
    }

    /// Returns the declaration of an item, and its implementations.
    fn describe(&self, definition: &Definition, name: &str) -> String {
        let items = &self.items[&definition.0];
        let declarations = items.iter().filter(|item| public_name(item).as_ref() == Some(&definition.1));
        let text: String = declarations.map(print).collect();
        // All blocks with the same header are one. The text does not depend on the order in the source.
        let mut implementations: BTreeMap<String, syn::ItemImpl> = BTreeMap::new();
        for (mut item, mut items) in self.implementations(definition) {
            items.retain(|item| public_member(item).is_some());
            if item.trait_.is_some() || !items.is_empty() {
                let header = print(&Item::Impl(item.clone()));
                item.items = implementations.remove(&header).map_or(Vec::new(), |item| item.items);
                item.items.extend(items);
                item.items.sort_by_key(public_member);
                implementations.insert(header, item);
            }
        }
        let implementations = implementations.into_values().map(|item| print(&Item::Impl(item)));
        let text = text + &implementations.collect::<String>();
        if name == definition.1 { text } else { text.replace(&definition.1, name) }
    }

    /// Returns the implementations of an item without their members, and their members.
    fn implementations(&self, definition: &Definition) -> Vec<(syn::ItemImpl, Vec<syn::ImplItem>)> {
        let mut found = Vec::new();
        for (module, items) in &self.items {
            for item in items {
                if let Item::Impl(item) = item
                    && self.subject(module, item).as_ref() == Some(definition)
                {
                    let mut item = item.clone();
                    let members = std::mem::take(&mut item.items);
                    found.push((item, members));
                }
            }
        }
        found
    }

    /// Returns the item of an implementation: its type, or its trait if the type is not of this crate, or the first parameter of the
    /// trait if neither is. None if the trait is private.
    fn subject(&self, module: &ModulePath, item: &syn::ItemImpl) -> Option<Definition> {
        let find = |path: &syn::Path| {
            let path: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let local = (module.clone(), path.concat());
            self.modules.definition(module, &path, 0).or_else(|| self.is_defined(&local).then_some(local))
        };
        let by_trait = item.trait_.as_ref().and_then(|(_, path, _)| find(path));
        if by_trait.as_ref().is_some_and(|by_trait| !self.names.values().any(|known| known == by_trait)) {
            return None;
        }
        let by_type = match &*item.self_ty {
            syn::Type::Path(path) => find(&path.path),
            _ => None,
        };
        let by_parameter = || {
            let arguments = &item.trait_.as_ref()?.1.segments.last()?.arguments;
            let syn::PathArguments::AngleBracketed(arguments) = arguments else { return None };
            arguments.args.iter().find_map(|argument| match argument {
                syn::GenericArgument::Type(syn::Type::Path(path)) => find(&path.path),
                _ => None,
            })
        };
        by_type.or(by_trait).or_else(by_parameter)
    }

    fn is_defined(&self, (module, name): &Definition) -> bool {
        let mut items = self.items.get(module).into_iter().flatten();
        items.any(|item| item_name(item).is_some_and(|(ident, _)| *ident == *name))
    }

    /// Returns the public functions of a type that take no `self` and return the type.
    fn constructors(&self, name: &str) -> Vec<String> {
        let definition = self.names.values().find(|(_, known)| known == name).unwrap();
        let is_constructor = |function: &syn::Signature| {
            let output = print_output(&function.output);
            let mut words = output.split(|c: char| !c.is_alphanumeric());
            function.receiver().is_none() && words.any(|word| word == "Self" || word == name)
        };
        let implementations = self.implementations(definition).into_iter();
        let members =
            implementations.filter(|(item, _)| item.trait_.is_none()).flat_map(|(_, members)| members);
        let functions = members.filter_map(|member| match member {
            syn::ImplItem::Fn(function) if is_public(&function.vis) => Some(function.sig),
            _ => None,
        });
        functions.filter(is_constructor).map(|function| function.ident.to_string()).collect()
    }
}

/// Returns the name of a public member of an inherent implementation.
fn public_member(member: &syn::ImplItem) -> Option<String> {
    match member {
        syn::ImplItem::Fn(item) => is_public(&item.vis).then(|| item.sig.ident.to_string()),
        syn::ImplItem::Const(item) => is_public(&item.vis).then(|| item.ident.to_string()),
        _ => None,
    }
}

/// Adds the items of a module and of its inline modules.
fn add(modules: &mut BTreeMap<ModulePath, Vec<Item>>, module: ModulePath, items: Vec<Item>) {
    modules.entry(module.clone()).or_default();
    for mut item in items {
        match &mut item {
            Item::Mod(inline) if is_test(&inline.attrs) => continue,
            Item::Mod(inline) => {
                if let Some((_, items)) = inline.content.take() {
                    add(modules, [module.as_slice(), &[inline.ident.to_string()]].concat(), items);
                }
            }
            Item::Macro(call) => {
                // The parameters of most macros are no items.
                if let Ok(file) = call.mac.parse_body::<syn::File>() {
                    add(modules, module.clone(), file.items);
                }
            }
            _ => {}
        }
        modules.get_mut(&module).unwrap().push(item);
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn item_name(item: &Item) -> Option<(&syn::Ident, &Visibility)> {
    Some(match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    })
}

fn public_name(item: &Item) -> Option<String> {
    item_name(item).filter(|(_, visibility)| is_public(visibility)).map(|(ident, _)| ident.to_string())
}

/// Returns the text of an item without documentation, bodies and private fields.
fn print(item: &Item) -> String {
    let mut item = item.clone();
    Interfaces.visit_item_mut(&mut item);
    let text = prettyplease::unparse(&syn::File { shebang: None, attrs: Vec::new(), items: vec![item] });
    // An empty body, behind bounds or not.
    let text = text.replace(",\n    {}\n", ";\n").replace(",\n{}\n", ";\n");
    text.replace(" {}\n", ";\n").replace("__private: (),", "// private fields")
}

fn print_output(output: &syn::ReturnType) -> String {
    let mut function: syn::ItemFn = syn::parse_str("fn f() {}").unwrap();
    function.sig.output = output.clone();
    print(&Item::Fn(function))
}

/// Removes what is no part of the interface.
struct Interfaces;

impl VisitMut for Interfaces {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<syn::Attribute>) {
        const KEPT: [&str; 5] = ["cfg", "cfg_attr", "derive", "must_use", "non_exhaustive"];
        attributes.retain(|attribute| {
            let list = attribute.meta.require_list();
            let is_documentation = list.is_ok_and(|list| list.tokens.to_string().contains("doc"));
            KEPT.iter().any(|name| attribute.path().is_ident(name)) && !is_documentation
        });
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.clear();
    }

    fn visit_pat_ident_mut(&mut self, pattern: &mut syn::PatIdent) {
        pattern.mutability = None;
    }

    fn visit_receiver_mut(&mut self, receiver: &mut syn::Receiver) {
        if receiver.reference.is_none() {
            receiver.mutability = None;
        }
    }

    fn visit_expr_mut(&mut self, expression: &mut syn::Expr) {
        // The value of a constant.
        *expression = syn::parse_str("_").unwrap();
    }

    fn visit_item_struct_mut(&mut self, item: &mut syn::ItemStruct) {
        match &mut item.fields {
            syn::Fields::Named(fields) => {
                let all = fields.named.len();
                let kept = fields.named.iter().filter(|field| is_public(&field.vis)).cloned();
                fields.named = kept.collect();
                if fields.named.len() < all {
                    fields.named.push(syn::Field::parse_named.parse_str("__private: ()").unwrap());
                }
            }
            syn::Fields::Unnamed(fields) => {
                for field in fields.unnamed.iter_mut().filter(|field| !is_public(&field.vis)) {
                    field.vis = Visibility::Inherited;
                    field.ty = syn::parse_str("_").unwrap();
                }
            }
            syn::Fields::Unit => {}
        }
        syn::visit_mut::visit_item_struct_mut(self, item);
    }
}
