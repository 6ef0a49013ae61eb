complete -c stelia-placement -l kubeconfig -d 'How the API server is reached; read again when it or a certificate that it names changes. Without it as kubectl does, or as a pod' -r -F
complete -c stelia-placement -l listen -d 'Where kube-scheduler finds it' -r
complete -c stelia-placement -l tls-cert -d 'The certificate, with those that vouch for it, PEM; read again when it changes' -r -F
complete -c stelia-placement -l tls-key -d 'Its key, PEM' -r -F
complete -c stelia-placement -l tls-client-ca -d 'Whose certificates clients must have, PEM; without it anybody who reaches the address is answered' -r -F
complete -c stelia-placement -l probes -d 'Where /healthz, /readyz, /leader and /metrics are answered too, without certificates' -r
complete -c stelia-placement -l lease-namespace -d 'The namespace of the Lease' -r
complete -c stelia-placement -l lease-name -d 'The Lease\'s name' -r
complete -c stelia-placement -l identity -d 'This instance\'s name in the Lease, to which something random is added' -r
complete -c stelia-placement -l service -d 'A Service without selector that is led to this instance while it places pods, by an EndpointSlice of its name in the Lease\'s namespace' -r
complete -c stelia-placement -l address -d 'This instance\'s address in that EndpointSlice; the port is --listen\'s' -r
complete -c stelia-placement -l scoring-strategy -d 'What the documents\' score favours: MostAllocated, BalancedAllocation, LeastAllocated' -r
complete -c stelia-placement -l completions -d 'Print a completion script, and nothing else' -r -f -a "bash\t''
elvish\t''
fish\t''
powershell\t''
zsh\t''"
complete -c stelia-placement -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-placement -s V -l version -d 'Print version'
