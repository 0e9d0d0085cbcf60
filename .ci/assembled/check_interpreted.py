import sys,random,time; sys.path[:0]=["/work/main","/work/main/tests/kernels"]
from flashlab import runtime
import torch, math
import test_attention as T
from flashlab.kernels import forward as F, backward as B, masks
from flashlab.kernels.tiles import forward_tile_for, backward_tiles_for
from flashlab.kernels.masks import Mask, decode
from flashlab.traffic.triton_hooks import launches
from flashlab.traffic.interpreter import trace
KIB=1024
seen=[]
def follow(launch):
    seen.append(launch.kernel.__name__)
    t=trace(launch.kernel, launch.grid, *launch.args, **launch.meta)
def run(n,head_dim,heads,views,name,places,causal,scale,sinks,deterministic,dtype):
    batch=1+(heads[0]<3)
    scale=head_dim**-.5*(1 if scale is None else scale)
    q,k,v=T.tensors(*n,head_dim,*heads,dtype,batch)
    mask,_=T.MASKS[name](batch,heads[0],*places)
    m=(mask or Mask()) & (masks.causal() if causal else Mask())
    do,dlse=T.VIEWS[views[3]](torch.randn_like(q)),torch.randn(batch,heads[0],n[0])
    sink=torch.linspace(-1,1,heads[0]).to(q.dtype) if sinks else None
    q,k,v=(T.VIEWS[w](x) for w,x in zip(views,(q,k,v)))
    fm,pp=decode(*m.encode())
    f32=dtype=="float32"
    ft=forward_tile_for(90,head_dim,f32,227*KIB,any(fm.limits) and n[1]<=2048)
    bt=backward_tiles_for(90,head_dim,f32,227*KIB)
    with launches(follow):
        o,lse=F.forward(q,k,v,fm,pp,scale,sink,tile=ft)
        B.backward(q,k,v,o,lse,do,dlse,fm,pp,scale,fused=not deterministic,tiles=bt)
if len(sys.argv)<2:
    t=time.time(); run((202,153),20,(4,2),('every second','every second','one row for all','plain'),'prefix',(2,-2),True,-1.0,True,True,'bfloat16'); print("clean",time.time()-t,seen)
else:
    random.seed(int(sys.argv[1])); t0=time.time(); c=0
    V=sorted(T.VIEWS)
    while time.time()-t0<float(sys.argv[2]):
        a=((random.randint(1,300),random.randint(1,300)),random.choice([20,64,128]),random.choice([(1,1),(2,1),(2,2),(4,2)]),tuple(random.choice(V) for _ in range(4)),random.choice(sorted(T.MASKS)),(random.randint(-2,300),random.randint(-2,300)),random.random()<.5,random.choice([None,0.,-1.,2.]),random.random()<.5,random.random()<.5,random.choice(["float16","bfloat16","float32"]))
        try: run(*a)
        except Exception as e: print("BAD",a,type(e).__name__,str(e)[:400],flush=True)
        c+=1
    print(c,"examples")
