// Package browser tests package page and the HTML page of a conformance report in headless Chromium (Debian's), driven
// by chromedp. It also tests that the documentation's diagrams can be drawn.
package browser
