// Package machine tells whether other programs left the judge and its program enough of the machine. On a busy machine
// a right proxy is late, and packets are lost that no proxy has touched: then a wrong result says nothing.
//
// A [Watch] knows two things. It counts the threads of other programs that were ready to run, and it is told how long
// control connections took, which no proxy handles. What the judge and its program use themselves is subtracted: a
// program that keeps the processors busy makes no excuse for itself.
package machine
