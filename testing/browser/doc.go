// Package browser tests package page, and the page of a conformance report, in a headless Chromium, Debian's, driven by
// chromedp; and that the diagrams of the documentation can be drawn there.
package browser
