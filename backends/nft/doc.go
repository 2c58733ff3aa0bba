// Package nft is a service proxy backend for Linux with nftables.
package nft
