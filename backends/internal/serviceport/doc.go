// Package serviceport works out what a backend is to do for each port of a service in one IP family: by which destinations
// its traffic comes, which endpoints it goes to, and which of them may reach themselves. It is what all backends need before
// they put it into words of their own: chains and sets, virtual servers, or load balancers.
//
// It also is where bad input ends. Ports and endpoints that no backend could program are left out, with a word why. A port
// that no route leads to in the family is left out without one.
//
// It decides nothing that the model has decided: which endpoints are in a set, what happens to which traffic. It remembers
// nothing and logs only what [LogSkipped] is asked to.
package serviceport
