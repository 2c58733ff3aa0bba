// Package browser tests package page in a headless Chromium, Debian's, driven by chromedp; and that the diagrams of the
// documentation can be drawn there.
package browser
