// Package churn makes a cluster that lives, for benchmarks and for random tests: pods with names that start, become
// ready, roll, drain and move to other nodes; services that come and go, scale, and change policies; nodes that change
// zones; and updates that mean nothing. It is a model of the API objects that controllers write, not of the
// controllers.
//
// Everything follows from the seed: the same Options give the same objects and the same steps, in the same order. A
// step costs the same in a cluster of any size.
//
//	cluster, err := churn.New(churn.Options{Seed: 1, Services: 1000, Endpoints: 10})
//	driver.Update(cluster.Objects()...)
//	driver.Sync()
//	for range 100 {
//		step := cluster.Step()
//		driver.Update(step.Changes...)
//		driver.Sync()
//	}
//
// For the model values that come of it, see Waves of package fakemodel.
package churn
