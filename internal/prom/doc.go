// Package prom has code shared by the metrics of several packages: histograms that are also native ones, and the
// registration of many collectors at once.
package prom
