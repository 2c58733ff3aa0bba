// Package machine determines whether other programs left enough of the machine to the judge and the program that it
// tests. On a busy machine a correct proxy is late, and packets are lost that no proxy has touched, so a wrong result
// proves nothing.
//
// A [Watch] uses two measurements: the number of threads of other programs that were ready to run, and the duration of
// control connections, which no proxy handles. What the judge and its program use themselves is subtracted: a program
// that keeps the processors busy is not excused by that.
package machine
