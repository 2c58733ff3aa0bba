// Package nodeports is the part of package nodeaddr that reads no addresses: which of a host's addresses serve node
// ports (S35). Package nodeaddr has its names as aliases. It exists so that package frontend can have a [Choice] among
// its options without linking what reads the host's addresses.
package nodeports
