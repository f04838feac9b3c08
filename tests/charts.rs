//! The charts of the guide: a title for a screen reader, and colours that are readable in light and dark.

use std::collections::BTreeMap;

use crate::docs::read;

/// The contrast that WCAG 2.2 requires of text, and of the parts of a graphic.
const TEXT: f64 = 4.5;
const GRAPHIC: f64 = 3.0;

#[test]
fn charts_are_readable_in_light_and_dark() {
    for name in ["bursts", "stream", "day", "dashboard"] {
        let chart = read(format!("src/guide/pictures/{name}.svg"));
        let (head, rest) = chart.split_once("<style>").unwrap();
        let title = head.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
        assert!(head.contains("role=\"img\"") && title.is_some_and(|(title, _)| title.len() > 20), "{head}");
        let (light, dark) =
            rest.split_once("</style>").unwrap().0.split_once("@media(prefers-color-scheme:dark){").unwrap();
        let (light, dark) = (colours(light), colours(dark));
        assert!(light.keys().eq(dark.keys()), "{name}: each colour has a dark one");
        for colours in [light, dark] {
            for (class, wanted) in [
                ("text", TEXT),
                ("small", TEXT),
                ("admitted", GRAPHIC),
                ("denied", GRAPHIC),
                ("over", GRAPHIC),
                ("edge", GRAPHIC),
            ] {
                let contrast = contrast(colours[class], colours["page"]);
                assert!(contrast >= wanted, "{name}: {class} on the page: {contrast:.2}");
            }
            let contrast = contrast(colours["admitted"], colours["denied"]);
            assert!(contrast >= GRAPHIC, "{name}: admitted beside denied: {contrast:.2}");
        }
    }
}

/// Returns the colour of each class: that of its fill, or else of its stroke.
fn colours(style: &str) -> BTreeMap<&str, &str> {
    let mut colours = BTreeMap::new();
    for (selector, rule) in style.split('}').filter_map(|rule| rule.split_once('{')) {
        let of =
            |wanted| rule.split(';').filter_map(|part| part.split_once(':')).find(|part| part.0 == wanted);
        if let Some((_, colour)) = of("fill").or_else(|| of("stroke")) {
            colours.insert(selector.trim_start_matches('.'), colour);
        }
    }
    colours
}

/// Returns the contrast ratio of two colours, as WCAG defines it.
fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

/// Returns the relative luminance of a colour such as `#08427a` or `#fff`.
fn luminance(colour: &str) -> f64 {
    let digits = colour.trim_start_matches('#');
    let digits =
        if digits.len() == 3 { digits.chars().flat_map(|c| [c, c]).collect() } else { digits.to_owned() };
    let weigh = |start: usize, weight: f64| {
        let value = f64::from(u8::from_str_radix(&digits[start..start + 2], 16).unwrap()) / 255.0;
        weight * if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    weigh(0, 0.2126) + weigh(2, 0.7152) + weigh(4, 0.0722)
}
