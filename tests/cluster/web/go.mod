// The program in the containers of the real node. It requires only Go's standard library.
module baton.test/cluster/web

go 1.26.0
