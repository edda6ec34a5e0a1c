// Package differential plays one generated set of scripts against kube-apiserver and against yurt-coordinator and
// compares the responses field by field.
//
// Reading order: script.go (a script), kinds.go and generate*.go (the set of scripts), play.go (playing a script),
// normalise.go (values that may differ between any two servers), compare.go (the differences), accepted.go (differences
// with a reason), report.go (the report), cells.go (the same for authorization).
//
// A script has a name that never changes. Its namespace and its object names are derived from it, so scripts are
// isolated from each other and run in parallel. The order and the choice of the sampled scripts depend on a seed only.
package differential
