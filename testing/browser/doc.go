// Package browser tests package page in a headless Chromium: Debian's, driven by chromedp.
package browser
