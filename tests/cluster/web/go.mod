// What runs in the containers of the real node. Needs nothing but Go.
module baton.test/cluster/web

go 1.26.0
