// Package churn simulates a cluster, for benchmarks and for random tests: pods start, become ready, roll, drain and
// move to other nodes; services are created and deleted, scale, and change policies; nodes change zones; and some
// updates change nothing. It simulates the API objects that controllers write, not the controllers.
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
// For the model values that result, see Waves of package fakemodel.
package churn
