// Package differential plays one generated set of scripts against kube-apiserver and against yurt-coordinator and
// compares the answers field by field.
//
// Reading order: script.go (what a script is), kinds.go and generate*.go (which scripts there are), play.go (how one is
// played), normalise.go (what may differ between any two servers), compare.go (what differs), accepted.go (which
// differences have a reason), report.go (what is printed), cells.go (the same for authorization).
//
// A script has a name that never changes; its namespace and its object names are derived from it, so scripts do not see
// each other and run side by side. The order and the choice of the sampled scripts depend on a seed only.
package differential
