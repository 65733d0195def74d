package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/testenv"
)

// checkedTests are the tests of this package, whose requests are looked at as a whole when they are over: the agents of none
// may have been refused anything, and all of them together have to use every right that package deploy gives.
type checkedTests struct{ tests interface{ Run() int } }

func (j checkedTests) Run() int {
	code := j.tests.Run()
	complaints, err := complain(code == 0 && all())
	if err != nil {
		complaints = append(complaints, err.Error())
	}
	for _, complaint := range complaints {
		fmt.Fprintln(os.Stderr, complaint)
	}
	if len(complaints) > 0 {
		return 1
	}
	return code
}

// all reports that no test was left out. A part of the tests does not show which rights are unused.
func all() bool {
	given := func(name string) bool { return flag.Lookup(name).Value.String() != flag.Lookup(name).DefValue }
	return !slices.ContainsFunc([]string{"test.run", "test.skip", "test.list", "test.short"}, given)
}

func complain(all bool) (complaints []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	requests, err := plane.Audit(ctx, cluster.Query{})
	if err != nil {
		return nil, err
	}
	for _, refused := range rights.Refused(deploy.ServiceAccountName, requests) {
		complaints = append(complaints, "RBAC refused the agent what it asked for: "+refused.String())
	}
	if !all {
		return complaints, nil
	}
	granted := rights.Grants(deploy.NamespaceRules(), deploy.ClusterRules())
	for _, unused := range rights.Unused(granted, deploy.ServiceAccountName, requests) {
		complaints = append(complaints, "No test has the agent use a right that deploy/rbac.go gives it: "+unused.String())
	}
	return complaints, nil
}
